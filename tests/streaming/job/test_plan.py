"""The plan of a batch, as Spark passes it to its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from state.checkpoint.batch_settings import Refusal, SettingsHistory
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.taken import Taken
from streaming.job.plan import BatchPlan, batch_of_task, next_cutoff_of_task
from tests.messages import some_batch_settings

_TRANSFER_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ENDS = {"in": {"0": 9, "1": 4}}
_SPAN = BatchSpan(CheckpointOrigin("c", 1, 2), 7, 10, 20, {"in": {"0": 3, "1": 4}}, _ENDS, clock_ms=15)
PLAN = BatchPlan(
    _SPAN, some_batch_settings(), Taken({("in", 0): BitMap64([5, 8])}), Refusal({"in": {"0": 6}}, 1_000), 30
)
HISTORY = SettingsHistory(((0, some_batch_settings(max_message_bytes=1)), (7, PLAN.settings)))


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with a thread in which Spark runs batch 7."""
    own = {"delayline.plan": None, "streaming.sql.batchId": "7", _TRANSFER_ROWS: "10000"}
    for name, value in own.items():
        # Spark accepts None for the value, which removes the property.
        spark.sparkContext._jsc.setLocalProperty(name, value)
    yield spark
    for name in own:
        spark.sparkContext._jsc.setLocalProperty(name, None)


def told(spark: SparkSession) -> dict[str, object]:
    """Return the facts that a task of this thread knows about its batch."""
    running_batch = batch_of_task(HISTORY)

    def ask(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = running_batch()
        assert batch.settings == PLAN.settings
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "known": [batch.batch_id, batch.read_partitions, batch.clock_ms, next_cutoff_of_task()],
                    "transfer_rows": batch.transfer_rows,
                    "refused": [batch.refusal.from_offsets["in"]["0"], batch.refusal.due_from_ms],
                    "taken": list(batch.taken.of_topic("in")["0"]),
                }
            ]
        )

    schema = "known array<long>, transfer_rows long, refused array<long>, taken array<long>"
    [row] = spark.range(0, 1, 1, 1).mapInArrow(ask, schema).collect()
    return row.asDict()


def test_a_task_knows_the_plan_of_its_batch(session: SparkSession) -> None:
    PLAN.tell_tasks(session)
    assert told(session) == {
        "known": [7, 1, 15, 30],
        "transfer_rows": 10_000,
        "refused": [6, 1_000],
        "taken": [5, 8],
    }


def test_a_task_outside_a_batch_and_one_of_another_batch_fail(session: SparkSession) -> None:
    with pytest.raises(PythonException, match=r"a task ran outside a batch: it was not told delayline\.plan"):
        told(session)
    PLAN.tell_tasks(session)
    session.sparkContext.setLocalProperty("streaming.sql.batchId", "8")
    with pytest.raises(PythonException, match="a task of batch 8 was told the plan of batch 7"):
        told(session)
