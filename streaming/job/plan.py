"""The plan of a batch: one record of all that decides its result. The tasks get it before the state stage runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch
from state.checkpoint.batch_settings import BatchSettings, Refusal, RunningBatch, SettingsHistory
from state.checkpoint.progress import BatchSpan
from state.taken import Taken

# Spark's local properties: ours has the plan of the batch that starts the task, and Spark sets the other two.
_PLAN, _BATCH, _TRANSFER_ROWS = (
    "delayline.plan", "streaming.sql.batchId", "spark.sql.execution.arrow.maxRecordsPerBatch",
)  # fmt: skip


@dataclass(frozen=True)
class BatchPlan:
    """All that decides the result of a batch, except the records themselves. A replay has the same plan.

    - `span`: its offsets, cutoffs and clocks, by Spark's offset log
    - `settings`: its settings, by the checkpoint, which records them when the job starts
    - `taken`: the records that forwarders have taken, by their claims
    - `refusal`: the records that it refuses, by the checkpoint, which has it before the batch runs
    - `next_cutoff_ms`: the cutoff of the next batch, epoch ms. Only this may differ in a replay, and Spark records the
      last value
    """

    span: BatchSpan
    settings: BatchSettings
    taken: Taken
    refusal: Refusal
    next_cutoff_ms: int

    def tell_tasks(self, spark: SparkSession) -> None:
        """Pass the needed parts of the plan to the tasks of this thread, and of threads that inherit from it."""
        told = {
            "batch_id": self.span.batch_id,
            "read_partitions": self.span.read_partitions,
            "clock_ms": self.span.clock_ms,
            "refusal": asdict(self.refusal),
            "taken": self.taken.to_text(),
            "next_cutoff_ms": self.next_cutoff_ms,
        }
        spark.sparkContext.setLocalProperty(_PLAN, json.dumps(told))


def batch_of_task(history: SettingsHistory) -> Callable[[], RunningBatch]:
    """Return a function that returns, inside a task, the running batch. It raises CheckpointMismatch outside one."""

    def running_batch() -> RunningBatch:
        told = _told()
        return RunningBatch(
            told["batch_id"],
            history.at(told["batch_id"]),
            told["read_partitions"],
            int(_property(_TRANSFER_ROWS)),
            told["clock_ms"],
            Refusal(**told["refusal"]),
            Taken.from_text(told["taken"]),
        )

    return running_batch


def next_cutoff_of_task() -> int:
    """Return, inside a task, the cutoff of the next batch, epoch ms. Raises CheckpointMismatch outside a batch."""
    return int(_told()["next_cutoff_ms"])


def _told() -> dict[str, Any]:
    batch_id, told = int(_property(_BATCH)), json.loads(_property(_PLAN))
    if told["batch_id"] != batch_id:
        raise CheckpointMismatch(f"a task of batch {batch_id} was told the plan of batch {told['batch_id']}")
    return dict(told)


def _property(name: str) -> str:
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context else None
    if value is None:
        raise CheckpointMismatch(f"a task ran outside a batch: it was not told {name}")
    return value
