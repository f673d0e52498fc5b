"""Staging: the shards' writers get the due messages of a batch, from its state stage and the prefetch window."""

from __future__ import annotations

import logging
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.failpoints import failpoint
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.ready_log.chunk import most_deliveries
from sinks.ready_log.stage import most_of_topics
from sinks.ready_log.task import REPORT_SCHEMA, Cancels, stage_chunks
from sinks.ready_log.writer import StagingPlan
from state.buckets.operator import BOUND, DUE
from state.checkpoint.progress import BatchSpan, InTable
from state.order import ORDER
from streaming.job.occurring import WHOLE, by_shard
from streaming.job.plan import BatchPlan
from streaming.job.steps.output import BatchOutput
from streaming.monitor.job_metrics import JobCounts

log = logging.getLogger(__name__)

_REPORT = from_arrow_schema(REPORT_SCHEMA)


class Staging:
    """Stages the due messages of one batch after the other, and remembers the writers."""

    def __init__(self, settings: Settings, lease: HeldLease, counts: JobCounts) -> None:
        self._settings, self._lease, self._counts = settings, lease, counts
        self._last_writers: dict[int, str] = {}

    def tasks(
        self,
        plan: BatchPlan,
        output: BatchOutput,
        occurring: BatchOutput | None,
        loaded: list[DataFrame],
        cancels: Cancels,
        in_table: InTable,
    ) -> DataFrame | None:
        """Return the frame that stages the batch, or None if nothing is due. One task has all rows of a shard.

        Chunks of the state stage, and of occurrences, are staged whole. Chunks `loaded` by the window are cut to the
        range between the batch's cutoffs. Each task merges both kinds, leaves out cancelled messages, and writes the
        answers. `in_table` is for the markers.
        """
        rows = output.rows if occurring is None else [*output.rows, *occurring.rows]
        if not loaded and not any(row["kind"] == DUE for row in rows):
            return None
        # Expressions as text: each column that is built in Python costs a dozen calls to Java.
        key = ("min_deliver_at_ms AS deliver_at_ms", *ORDER[1:])
        own = output.frame if occurring is None else output.frame.union(occurring.frame)
        due = own.where(f"kind = '{DUE}'").selectExpr("shard", *key, *WHOLE, "chunk")
        if loaded:
            from_ms = f"{plan.span.previous_ms}L AS from_ms"
            sealed = (piece.selectExpr("shard", *ORDER, from_ms, "until_ms", "chunk") for piece in loaded)
            due = reduce(DataFrame.union, sealed, due)
        if loaded or occurring is not None or output.is_spread:
            due = by_shard(due, plan.settings)
        # Otherwise each partition already has all rows of its shards.
        ordered = due.sortWithinPartitions("shard", *ORDER)
        below_ms = {row["shard"]: row["min_deliver_at_ms"] for row in rows if row["kind"] == BOUND}
        stage_plan = self._stage_plan(plan.span, below_ms, in_table)
        return ordered.mapInArrow(stage_chunks(stage_plan, cancels), _REPORT)

    def run(self, tasks: DataFrame) -> None:
        """Stage the batch. Any thread may call it."""
        with self._counts.timed("stage"):
            writers = {report["shard"]: report["writer"] for report in tasks.collect()}
        if opened := sorted(shard for shard, writer in writers.items() if self._last_writers.get(shard) != writer):
            log.info("opened writers for shards %s of the %d that staged messages", opened, len(writers))
        self._last_writers.update(writers)
        failpoint("staged")

    def _stage_plan(self, span: BatchSpan, occurrences_below_ms: dict[int, int], in_table: InTable) -> StagingPlan:
        return StagingPlan(
            application_id=self._settings.application_id,
            batch=span,
            clock_ms=span.clock_ms,
            progress_topic=self._settings.progress_topic,
            ready_topic=self._settings.ready_topic,
            lease_topic=self._settings.lease_topic,
            fencing_token=self._lease.fencing_token,
            transaction_timeout_ms=self._settings.release.transaction_timeout,
            outage_limit_ms=self._settings.kafka.outage_limit,
            tolerates_input_loss=self._settings.topics.skip_expired,
            options=librdkafka_options(self._settings.kafka),
            last_writers=self._last_writers,
            most_deliveries=most_deliveries(self._settings.limits.max_message_bytes),
            most_of_topics=most_of_topics(self._settings),
            occurrences_below_ms=occurrences_below_ms,
            in_table=in_table,
        )
