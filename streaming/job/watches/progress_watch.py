"""The watch over Spark's report of each batch: dropped rows, mutable buckets, and unread records."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from conf.errors import LateRowsDropped
from streaming.monitor.job_metrics import JobCounts


class ProgressWatch:
    """Checks each batch's progress for dropped rows (invariant 6), and counts its mutable buckets."""

    def __init__(self, query: StreamingQuery, counts: JobCounts) -> None:
        self._query = query
        self._counts = counts
        self._checked = -1

    def check(self) -> None:
        """Check and count the batches that ended since the last call.

        Stops the query and raises LateRowsDropped if one of them dropped rows.
        """
        newest = self._checked
        lag: dict[str, int] = {}
        # Not `query.recentProgress`, which iterates Java maps from Python: each iteration ends with a Java exception
        # that pyspark classifies in a dozen calls. With the hundred batches that Spark keeps, that took a core.
        for progress in reversed(self._query._jsq.recentProgress()):
            batch_id = progress.batchId()
            if batch_id <= self._checked:
                break
            newest = max(newest, batch_id)
            report = json.loads(progress.json())
            operators = report["stateOperators"]
            mutable_buckets = sum(operator["numRowsTotal"] for operator in operators)
            # The newest comes first.
            lag = lag or _input_lag(report["sources"])
            self._counts.reported(batch_id, mutable_buckets, lag)
            if dropped := sum(operator["numRowsDroppedByWatermark"] for operator in operators):
                self._query.stop()
                raise LateRowsDropped(
                    f"batch {batch_id}: Spark dropped {dropped} chunks of messages below the watermark. "
                    "Before you start the job again, run `delayline rebuild --discard-checkpoint`, which "
                    "accepts the messages again that are not due yet. Please report this with the "
                    "checkpoint"
                )
        self._checked = newest


def _input_lag(sources: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many offsets of each input topic are left unread, by Spark's report of a batch."""
    lag: Counter[str] = Counter()
    for source in sources:
        latest, end = source["latestOffset"] or {}, source["endOffset"] or {}
        for topic, offsets in latest.items():
            read = end.get(topic, {})
            lag[topic] += sum(offset - read.get(partition, offset) for partition, offset in offsets.items())
    return dict(lag)
