"""The report of a batch to the metrics: its work, and the messages that wait after it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import Row

from conf.settings import Settings
from state.buckets.catalog import SegmentCatalog
from state.buckets.operator import KEPT
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan
from state.due_spans import decode_runs
from streaming.job.requests.decision import Decision
from streaming.job.sealed.look_ahead import LookAhead
from streaming.maintenance.maintenance import Maintenance
from streaming.monitor.estimate import MutableDues
from streaming.monitor.job_metrics import JobCounts
from streaming.monitor.table_state import TableState


class BatchReport:
    """Reports each batch to the metrics."""

    def __init__(
        self,
        settings: Settings,
        counts: JobCounts,
        catalog: SegmentCatalog,
        maintenance: Maintenance,
        ahead: LookAhead,
    ) -> None:
        self._settings, self._counts = settings, counts
        self._catalog, self._maintenance, self._ahead = catalog, maintenance, ahead

    def batch_done(
        self,
        planned: PlannedBatch,
        span: BatchSpan,
        rows: Iterable[Row],
        sealed: int,
        decision: Decision,
        taken_over: Mapping[int, bool],
    ) -> None:
        """Report a batch.

        Args:
            planned: its entry in the offset log.
            span: its span.
            rows: its rows (`SHARD_OUTPUT_SCHEMA`), without chunks of messages.
            sealed: how many messages it has sealed.
            decision: its decision.
            taken_over: for each open lane, whether the job has taken it over.
        """
        kept: dict[int, MutableDues] = {}
        accepted: Counter[str] = Counter()
        for row in rows:
            if row["kind"] == KEPT:
                accepted.update(json.loads(row["accepted"]))
            # The overflow groups of a shard keep nothing, unlike its own group.
            if row["kind"] == KEPT and (row["count"] or row["shard"] not in kept):
                kept[row["shard"]] = MutableDues(decode_runs(row["chunk"]), row["bytes"])
        self._counts.lanes_now(taken_over)
        self._counts.batch_done(planned, span.read_by_topic, accepted, sealed, decision.cancels, kept)
        # There may be many segments. Skip them if nobody can see the result.
        if self._settings.monitor.tells_of_job:
            buckets = self._catalog.buckets
            self._counts.table_now(
                TableState(
                    segments=[segment for own in buckets.values() for segment in own],
                    buckets=len(buckets),
                    merges=self._maintenance.merges,
                    size=self._ahead.size(),
                    failures=self._maintenance.failures,
                )
            )
