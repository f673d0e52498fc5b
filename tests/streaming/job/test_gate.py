"""The gate between Spark's batches and the job's: a batch that it stops is planned, not committed, and comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from streaming.job.service import Gate
from tests.eventually import assert_eventually

StartQuery = Callable[[Callable[[DataFrame, int], None]], StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[StartQuery]:
    """A function that starts a query whose batches go to the function given; each start goes on from the one before."""
    started: list[StreamingQuery] = []

    def start_query(run_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path)).trigger(processingTime="100 milliseconds")
        started.append(writer.foreachBatch(run_batch).start())
        return started[-1]

    yield start_query
    for query in started:
        query.stop()


def _end(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as ended:
        query.awaitTermination(60)
    return str(ended.value)


def test_a_batch_behind_a_closed_gate_is_left_undone_and_is_the_first_of_the_next_start(start: StartQuery) -> None:
    ran: list[int] = []
    gate = Gate()
    query = start(gate.guard(lambda _, batch_id: ran.append(batch_id)))
    assert_eventually(lambda: len(ran) >= 2, 60)
    gate.close()
    told = _end(query)
    left = len(ran)
    assert f"service-stopping: batch {left} is left to the next start" in told

    told = _end(start(Gate(last_batch=left).guard(lambda _, batch_id: ran.append(batch_id))))
    assert f"service-stopping: batch {left + 1} is left to the next start" in told
    assert ran == list(range(left + 1))


def test_a_batch_that_fails_since_it_was_cut_off_is_told_as_that_and_not_as_what_it_failed_by(
    start: StartQuery,
) -> None:
    gate = Gate()

    def fail(_: DataFrame, batch_id: int) -> None:
        gate.close(cut_off=True)
        raise ZeroDivisionError("as a cancelled task may")

    told = _end(start(gate.guard(fail)))
    assert "service-stopping: batch 0 was cut off, and is left to the next start" in told
    assert "ZeroDivisionError" not in told
