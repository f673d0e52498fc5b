"""Segments: cuts a sealed bucket, and describes each segment in metadata.

Modelled on the segments of Pulsar's `DelayedIndexSnapshot`: described by bounds and message ids, so that segments that
are not needed are never read. Unlike in Pulsar, they are cut by count and bytes alone, not by time. So their number
depends on how many messages wait, and not on how far apart they are due.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.parts import sealed_part
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import repeats
from state.stub import HEADER_BYTES

# The shard of a segment with messages of several shards, as in a merged bucket.
ANY_SHARD = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """The metadata of one segment, which `(bucket, shard, segment)` identifies.

    `bucket` is the number of the batch that sealed it, counted on through all checkpoints of the application. A merged
    bucket has the number of the newest one in it, and its segments have the shard `ANY_SHARD`. `part` names the part
    that stores it (`state.buckets.parts`), and `repeats` says how many of its messages repeat. Instants are epoch ms,
    and `max_deliver_at_ms` is inclusive. The entries of the message-id index are stored next to this metadata
    (`state.buckets.table_rows`); the driver never holds them.
    """

    bucket: int
    shard: int
    segment: int
    part: str
    min_deliver_at_ms: int
    max_deliver_at_ms: int
    count: int
    bytes: int
    repeats: int = 0

    def __post_init__(self) -> None:
        # Many segments share a part; interning stores its name once.
        object.__setattr__(self, "part", sys.intern(self.part))


class SegmentCutter:
    """Cuts the messages of one part, which come piece by piece in delivery order.

    A segment has at most `segment_max_messages` messages and `bucket_max_bytes` bytes; a single message may be larger.
    """

    def __init__(
        self, bucket: int, shard: int, part: str, numbers: Iterator[int], batch_settings: BatchSettings
    ) -> None:
        """Create a cutter that holds no messages yet.

        Args:
            bucket: the segments' bucket
            shard: the shard of all messages, or `ANY_SHARD`
            part: the name of the part of all messages
            numbers: yields the segment numbers, which must be unique in the bucket and shard
            batch_settings: has the limits of a segment
        """
        self._bucket, self._shard, self._part = bucket, shard, part
        self._numbers = numbers
        self._batch_settings = batch_settings
        self._open: list[pa.Table] = []

    def add(self, messages: pa.Table) -> Iterator[tuple[Segment, pa.Table]]:
        """Add the next messages, and yield the segments that they complete."""
        self._open.append(messages)
        full = sum(table.num_rows for table in self._open) > self._batch_settings.segment_max_messages
        if full or sum(table.nbytes for table in self._open) > self._batch_settings.bucket_max_bytes:
            yield from self._cut(keep_last=True)

    def finish(self) -> Iterator[tuple[Segment, pa.Table]]:
        """Yield the segments of the remaining messages."""
        yield from self._cut(keep_last=False)

    def cut(self, pieces: Iterable[pa.Table]) -> Iterator[tuple[Segment, pa.Table]]:
        """Yield the segments of `pieces`, which are all messages of the part."""
        for messages in pieces:
            yield from self.add(messages)
        yield from self.finish()

    def _cut(self, keep_last: bool) -> Iterator[tuple[Segment, pa.Table]]:
        messages = pa.concat_tables(self._open) if self._open else None
        self._open = []
        if messages is None or not messages.num_rows:
            return
        due = messages.column("deliver_at_ms").to_numpy()
        sizes = row_bytes(messages)
        start = 0
        while start < len(due):
            end = self._end(sizes, start)
            rows = messages.slice(start, end - start)
            if keep_last and end == len(due):
                self._open = [rows]
                return
            yield self._describe(due[start:end], int(sizes[start:end].sum()), int(repeats(rows).sum())), rows
            start = end

    def _end(self, sizes: np.ndarray, start: int) -> int:
        largest = sizes[start : start + self._batch_settings.segment_max_messages]
        fitting = int(np.searchsorted(np.cumsum(largest), self._batch_settings.bucket_max_bytes, side="right"))
        return start + max(1, fitting)

    def _describe(self, due: np.ndarray, size: int, repeating: int) -> Segment:
        return Segment(
            bucket=self._bucket,
            shard=self._shard,
            segment=next(self._numbers),
            part=self._part,
            min_deliver_at_ms=int(due[0]),
            max_deliver_at_ms=int(due[-1]),
            count=len(due),
            bytes=size,
            repeats=repeating,
        )


def cut(
    sealed: pa.Table, bucket: int, shard: int, batch_settings: BatchSettings, first_number: int = 0, part: str = ""
) -> Iterator[tuple[Segment, pa.Table]]:
    """Cut `sealed` into segments of the bucket's only part, and yield each one's metadata and messages.

    Args:
        sealed: the messages of a bucket and shard, in delivery order
        bucket: the bucket's number
        shard: the shard of all messages
        batch_settings: has the limits of a segment
        first_number: the number of the first segment, from which they are counted on
        part: the name of another part of the bucket
    """
    cutter = SegmentCutter(bucket, shard, part or sealed_part(bucket), count(first_number), batch_settings)
    yield from cutter.cut([sealed])


def segment_of(messages: pa.Table, bucket: int, shard: int, number: int, part: str) -> Segment:
    """Return the metadata of one segment.

    Args:
        messages: the segment's messages, at least one, in delivery order
        bucket: the segment's bucket
        shard: the segment's shard
        number: the segment's number in the bucket and shard
        part: the name of the part that stores the segment
    """
    due = messages.column("deliver_at_ms")
    return Segment(
        bucket=bucket,
        shard=shard,
        segment=number,
        part=part,
        min_deliver_at_ms=due[0].as_py(),
        max_deliver_at_ms=due[-1].as_py(),
        count=messages.num_rows,
        bytes=int(row_bytes(messages).sum()),
        repeats=int(repeats(messages).sum()),
    )


def row_bytes(messages: pa.Table) -> np.ndarray:
    """Return the approximate bytes of each message: key, value, headers, error text, and a constant for the rest.

    Each header takes `HEADER_BYTES` more than its name and value.
    """
    sizes = np.full(messages.num_rows, 64, dtype=np.int64)
    for name in ("key", "value", "error_text"):
        sizes += pc.binary_length(messages.column(name)).fill_null(0).to_numpy().astype(np.int64)
    start = 0
    for headers in messages.column("headers").chunks:
        sizes[start : start + len(headers)] += _header_bytes(headers)
        start += len(headers)
    return sizes


def _header_bytes(headers: pa.ListArray) -> np.ndarray:
    flat = headers.flatten()
    lengths = np.full(len(flat), HEADER_BYTES, dtype=np.int64)
    for name in ("key", "value"):
        lengths += np.asarray(pc.binary_length(pc.struct_field(flat, name)).fill_null(0))
    rows = np.repeat(np.arange(len(headers)), np.asarray(pc.list_value_length(headers).fill_null(0)))
    return np.bincount(rows, lengths, minlength=len(headers)).astype(np.int64)
