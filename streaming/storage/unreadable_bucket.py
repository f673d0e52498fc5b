"""The error for a file of sealed buckets that cannot be read: which messages wait in it, and when they are due."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from conf.errors import BucketUnreadable
from conf.instants import instant
from sinks.buckets.bucket_table import BucketTable
from state.buckets.parts import chunks_of
from state.buckets.segments import Segment
from streaming.storage.failures import TABLE_REMEDY, cause_of, text_of, unreadable_file

log = logging.getLogger(__name__)


def unreadable_bucket(store: BucketTable, segments: Iterable[Segment], problem: Exception) -> BucketUnreadable | None:
    """Return the error for `problem`, which Spark raised while it read `segments`; None if no file is the cause."""
    text = text_of(problem)
    file = unreadable_file(text)
    if file is None:
        return None
    log.debug("%s cannot be read: %s", file, text)
    in_file = _segments_of(store, file, segments)
    return BucketUnreadable(f"{file} is missing or damaged ({cause_of(text)}). {_description(in_file)}{TABLE_REMEDY}")


def _segments_of(store: BucketTable, file: str, segments: Iterable[Segment]) -> list[Segment]:
    """Return the members of `segments` that may be in `file`, by the file's bounds in the table's log."""
    name = file.rpartition("/")[2]
    row = next((row for row in store.files() if row["path"].rpartition("/")[2] == name), None)
    if row is None:
        # The file was merged or deleted after the read began.
        return []
    stats = json.loads(row["stats"])
    bounds = [(stats["minValues"][column], stats["maxValues"][column]) for column in ("bucket", "shard", "segment")]
    return [
        segment
        for segment in segments
        if chunks_of(segment.part) == row["part"]
        and all(
            least <= value <= most
            for (least, most), value in zip(bounds, (segment.bucket, segment.shard, segment.segment), strict=True)
        )
    ]


def _description(segments: list[Segment]) -> str:
    if not segments:
        return ""
    first = min(segment.min_deliver_at_ms for segment in segments)
    last = max(segment.max_deliver_at_ms for segment in segments)
    buckets = sorted({segment.bucket for segment in segments})
    names = ", ".join(f"{segment.shard}/{segment.segment}" for segment in segments[:10])
    more = "" if len(segments) <= 10 else f" and {len(segments) - 10} more"
    return (
        f"It holds {sum(segment.count for segment in segments)} messages of bucket "
        f"{', '.join(map(str, buckets))}, due from {instant(first)} to {instant(last)}, in the segments "
        f"(shard/segment) {names}{more}. "
    )
