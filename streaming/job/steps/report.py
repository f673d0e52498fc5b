"""The report of a batch to the log and the metrics: its work, and the messages that wait after it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Row

from conf.instants import instant_and_ms
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

log = logging.getLogger(__name__)


class BatchReport:
    """Reports each batch to the log and the metrics."""

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
        sealed: Sequence[Row],
        decision: Decision,
        taken_over: Mapping[int, bool],
        took_s: float,
        has_staged: bool,
    ) -> None:
        """Report a batch.

        Args:
            planned: its entry in the offset log.
            span: its span.
            rows: its rows (`SHARD_OUTPUT_SCHEMA`), without chunks of messages.
            sealed: its rows of sealed segments.
            decision: its decision.
            taken_over: for each open lane, whether the job has taken it over.
            took_s: how long it took, in seconds.
            has_staged: whether it has staged anything.
        """
        sealed_messages = sum(row["count"] for row in sealed)
        if has_staged or sealed:
            log.info(
                "batch %d: staged messages due before %s, sealed %d messages in %d segments, took %.2f s",
                span.batch_id, instant_and_ms(span.cutoff_ms), sealed_messages, len(sealed), took_s,
            )  # fmt: skip
        self._counts.took("whole", took_s)
        kept: dict[int, MutableDues] = {}
        accepted: Counter[str] = Counter()
        for row in rows:
            if row["kind"] == KEPT:
                accepted.update(json.loads(row["accepted"]))
            # The overflow groups of a shard keep nothing, unlike its own group.
            if row["kind"] == KEPT and (row["count"] or row["shard"] not in kept):
                kept[row["shard"]] = MutableDues(decode_runs(row["chunk"]), row["bytes"])
        self._counts.lanes_now(taken_over)
        self._counts.batch_done(planned, span.read_by_topic, accepted, sealed_messages, decision.cancels, kept)
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
