"""The error for a file of sealed buckets that could not be read: which messages wait in it, and until when."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from conf.errors import BucketUnreadable
from sinks.bucket_table import BucketTable
from state.buckets.segments import Segment
from streaming.storage.failures import REPAIR, cause_of, text_of, unreadable_file

log = logging.getLogger(__name__)


def unreadable_bucket(store: BucketTable, segments: Iterable[Segment], problem: Exception) -> BucketUnreadable | None:
    """Return the error for `problem`, raised by Spark while it read `segments`; None if no file was to blame."""
    text = text_of(problem)
    file = unreadable_file(text)
    if file is None:
        return None
    log.debug("%s cannot be read: %s", file, text)
    held = _segments_of(store, file, segments)
    return BucketUnreadable(f"{file} is missing or damaged ({cause_of(text)}). {_waiting_in(held)}{REPAIR}")


def instant(ms: int) -> str:
    """Return epoch ms as people read it."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _segments_of(store: BucketTable, file: str, segments: Iterable[Segment]) -> list[Segment]:
    """Return those of `segments` that lie in `file`, by the bounds that the table's log has of it."""
    name = file.rpartition("/")[2]
    found = next((row for row in store.files() if row["path"].rpartition("/")[2] == name), None)
    if found is None:
        # Merged away or deleted since the reading began.
        return []
    stats = json.loads(found["stats"])
    bounds = [(stats["minValues"][column], stats["maxValues"][column]) for column in ("bucket", "shard", "segment")]
    return [
        segment
        for segment in segments
        if segment.time_partition == found["part"]
        and all(
            least <= value <= most
            for (least, most), value in zip(bounds, (segment.bucket, segment.shard, segment.segment), strict=True)
        )
    ]


def _waiting_in(segments: list[Segment]) -> str:
    if not segments:
        return ""
    first = min(segment.min_deliver_at_ms for segment in segments)
    last = max(segment.max_deliver_at_ms for segment in segments)
    buckets = sorted({segment.bucket for segment in segments})
    names = ", ".join(f"{segment.shard}/{segment.segment}" for segment in segments[:10])
    more = "" if len(segments) <= 10 else f" and {len(segments) - 10} more"
    return (
        f"{sum(segment.count for segment in segments)} messages of bucket {', '.join(map(str, buckets))} lie in it, "
        f"due from {instant(first)} to {instant(last)}: the segments (shard/segment) {names}{more}. "
    )
