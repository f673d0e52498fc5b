"""Sealing: storing in the table of sealed buckets, in one commit before a batch is staged or at the same time.

If messages repeat, a second commit follows after the batch is staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

from conf.failpoints import failpoint
from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import cancelled_rows
from state.buckets.operator import SEALED
from state.buckets.retimed import retimed_rows
from state.buckets.segments import Segment
from state.buckets.table_rows import STORED_SCHEMA, ArrowFunction, stored_rows
from state.names import name_rows
from streaming.checkpoint.switch_over import in_table, writer_of_following
from streaming.job.plan import BatchPlan
from streaming.job.requests.decision import Decision
from streaming.job.sealed.look_ahead import LookAhead
from streaming.job.steps.output import BatchOutput
from streaming.monitor.job_metrics import JobCounts

# One task stores so many bytes in little time. Each task costs more than a few rows do, even a task without rows.
_SEAL_TASK_BYTES = 8 * 1024 * 1024
_STORED = from_arrow_schema(STORED_SCHEMA)


class Sealing:
    """Stores the sealed messages, cancelled ids and names of one batch after the other.

    `in_table` is what the table has of `checkpoint`.
    """

    def __init__(self, store: BucketTable, ahead: LookAhead, counts: JobCounts, checkpoint: str) -> None:
        self._store, self._ahead, self._counts = store, ahead, counts
        self.in_table = in_table(store, checkpoint)

    @staticmethod
    def has_work(output: BatchOutput, decision: Decision) -> bool:
        """Return whether a batch has anything to store."""
        return bool(output.sealed or any(decision.stored.values()))

    def seal(self, plan: BatchPlan, output: BatchOutput, decision: Decision) -> None:
        """Store the sealed messages of `output`, and the ids of the decision. Any thread may call it."""
        self._append("seal", plan, output, decision, plan.span.origin.checkpoint)
        self.in_table = self.in_table._replace(sealed=plan.span.batch_id)
        failpoint("sealed")

    def follow(self, plan: BatchPlan, occurring: BatchOutput, names: pa.Table) -> list[Segment]:
        """Store the following occurrences and their names. Return the segments that are new.

        Call it after the batch is staged: a rebuild that finds these occurrences assumes so. A replay stores nothing if
        its first try has: with changed time zones it may compute other instants.
        """
        if plan.span.batch_id <= self.in_table.followed:
            return []
        if not occurring.sealed and not names.num_rows:
            return []
        failpoint("following")
        writer_id = writer_of_following(plan.span.origin.checkpoint)
        self._append("follow", plan, occurring, Decision(names=names), writer_id)
        self.in_table = self.in_table._replace(followed=plan.span.batch_id)
        failpoint("followed")
        return occurring.segments

    def _append(self, step: str, plan: BatchPlan, output: BatchOutput, decision: Decision, writer_id: str) -> None:
        as_stored = stored_rows(plan.settings.index_precision_bits)
        tasks = 1 + sum(row["bytes"] for row in output.sealed) // _SEAL_TASK_BYTES
        rows = output.frame.where(f"kind = '{SEALED}'").coalesce(tasks)
        if any(decision.stored.values()):
            as_stored = _with_ids(as_stored, decision, plan.span.bucket)
        rows = rows.mapInArrow(as_stored, _STORED)
        with self._counts.timed(step):
            self._ahead.wait()
            self._store.append(rows, writer_id, plan.span.batch_id)
        self._ahead.begin()


def _with_ids(as_stored: ArrowFunction, decision: Decision, bucket: int) -> ArrowFunction:
    """Return a `mapInArrow` function that adds the rows of ids of a batch to `as_stored`, in the first task.

    Spark makes rows of a table in the driver one by one, in the thread of the query.
    """
    cancelled, replaced, names, retimed = decision.cancelled, decision.replaced, decision.names, decision.retimed

    def run(sealed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from as_stored(sealed)
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            yield from cancelled_rows(cancelled, bucket, replaced).to_batches()
            yield from name_rows(names, bucket).to_batches()
            yield from retimed_rows(retimed, bucket).to_batches()

    return run
