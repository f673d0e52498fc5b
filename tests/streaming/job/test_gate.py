"""The gate between Spark's batches and the job's: a batch that it stops is planned, not committed, and runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from streaming.job.gate import Gate
from tests.eventually import assert_eventually

StartQuery = Callable[[Callable[[DataFrame, int], None]], StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[StartQuery]:
    """A function that starts a query with a given function for its batches. Each start continues the previous one."""
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
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    return str(raised.value)


def test_a_closed_gate_stops_the_next_batch_which_is_the_first_of_the_next_start(start: StartQuery) -> None:
    ran: list[int] = []
    gate = Gate()
    query = start(gate.guard(lambda _, batch_id: ran.append(batch_id)))
    assert_eventually(lambda: len(ran) >= 2, 60)
    gate.close()
    message = _end(query)
    next_batch = len(ran)
    assert f"service-stopping: batch {next_batch} is left to the next start" in message

    query = start(lambda _, batch_id: ran.append(batch_id))
    assert_eventually(lambda: len(ran) > next_batch, 60)
    query.stop()
    assert ran[: next_batch + 1] == list(range(next_batch + 1))


def test_a_batch_that_fails_because_it_was_cut_off_is_reported_as_cut_off(
    start: StartQuery,
) -> None:
    gate = Gate()

    def fail(_: DataFrame, batch_id: int) -> None:
        gate.close(cut_off=True)
        raise ZeroDivisionError("as a cancelled task may")

    message = _end(start(gate.guard(fail)))
    assert "service-stopping: batch 0 was cut off, and is left to the next start" in message
    assert "ZeroDivisionError" not in message
