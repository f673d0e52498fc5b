"""Segments: cuts a sealed bucket, and describes each segment in metadata.

Modelled on the segments of Pulsar's `DelayedIndexSnapshot`: cut by time and by count, and described by bounds and
message ids, so that segments that are not needed are never read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.checkpoint.batch_settings import BatchSettings

# Far messages get longer time partitions: otherwise delays spread evenly over a year would make 8,784 files for each
# bucket. Each pair: up to how many partition lengths ahead it applies (None: any), and the length, both as multiples
# of the shortest length.
_PARTITION_SPANS = ((48, 1), (48 * 31, 24), (None, 24 * 28))


@dataclass(frozen=True, slots=True)
class Segment:
    """The metadata of one segment, which `(bucket, shard, segment)` identifies.

    `bucket` is the number of the batch that sealed it, counted on through all checkpoints of the application; a merged
    bucket has the number of its newest part. Instants are epoch ms, and `max_deliver_at_ms` is inclusive. The entries
    of the message-id index are stored beside this metadata (`state.buckets.table_rows`); the driver never holds them.
    """

    bucket: int
    shard: int
    segment: int
    time_partition: str
    min_deliver_at_ms: int
    max_deliver_at_ms: int
    count: int
    bytes: int

    def __post_init__(self) -> None:
        # Thousands of segments share a label; interning stores it once.
        object.__setattr__(self, "time_partition", sys.intern(self.time_partition))


class SegmentCutter:
    """Cuts the messages of one shard and one time partition, which come piece by piece in delivery order.

    A segment spans at most `segment_max_ms` of due time and holds at most `segment_max_messages` messages and
    `bucket_max_bytes` bytes; a single message may be larger.
    """

    def __init__(
        self, bucket: int, shard: int, time_partition: str, numbers: Iterator[int], batch_settings: BatchSettings
    ) -> None:
        """Create a cutter that holds no messages yet.

        Args:
            bucket: the segments' bucket
            shard: the shard of all messages
            time_partition: the label of the time partition of all messages
            numbers: yields the segment numbers, which must be unique in the bucket and shard
            batch_settings: has the limits of a segment
        """
        self._bucket, self._shard, self._time_partition = bucket, shard, time_partition
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

    def _cut(self, keep_last: bool) -> Iterator[tuple[Segment, pa.Table]]:
        messages = pa.concat_tables(self._open) if self._open else None
        self._open = []
        if messages is None or not messages.num_rows:
            return
        due = messages.column("deliver_at_ms").to_numpy()
        sizes = _row_bytes(messages)
        start = 0
        while start < len(due):
            end = self._end(due, sizes, start)
            rows = messages.slice(start, end - start)
            if keep_last and end == len(due):
                self._open = [rows]
                return
            yield self._describe(due[start:end], int(sizes[start:end].sum())), rows
            start = end

    def _end(self, due: np.ndarray, sizes: np.ndarray, start: int) -> int:
        end_ms = int(due[start]) + self._batch_settings.segment_max_ms
        end = min(int(np.searchsorted(due, end_ms, side="left")), start + self._batch_settings.segment_max_messages)
        fitting = int(np.searchsorted(np.cumsum(sizes[start:end]), self._batch_settings.bucket_max_bytes, side="right"))
        return start + max(1, min(end - start, fitting))

    def _describe(self, due: np.ndarray, size: int) -> Segment:
        return Segment(
            bucket=self._bucket,
            shard=self._shard,
            segment=next(self._numbers),
            time_partition=self._time_partition,
            min_deliver_at_ms=int(due[0]),
            max_deliver_at_ms=int(due[-1]),
            count=len(due),
            bytes=size,
        )


def cut(
    sealed: pa.Table, bucket: int, shard: int, cutoff_ms: int, batch_settings: BatchSettings
) -> Iterator[tuple[Segment, pa.Table]]:
    """Cut `sealed` into segments, none across a time partition, and yield each one's metadata and messages.

    Args:
        sealed: the messages of a bucket and shard, in delivery order
        bucket: the bucket's number
        shard: the shard of all messages
        cutoff_ms: the cutoff of the batch that seals, epoch ms; time partitions get longer with the distance from it
        batch_settings: has the limits of a segment and the length of a time partition
    """
    due = sealed.column("deliver_at_ms").to_numpy()
    numbers = count()
    start = 0
    while start < len(due):
        label, end_ms = time_partition(int(due[start]), cutoff_ms, batch_settings.time_partition_ms)
        end = int(np.searchsorted(due, end_ms, side="left"))
        cutter = SegmentCutter(bucket, shard, label, numbers, batch_settings)
        yield from cutter.add(sealed.slice(start, end - start))
        yield from cutter.finish()
        start = end


def segment_of(messages: pa.Table, bucket: int, shard: int, number: int, time_partition: str) -> Segment:
    """Return the metadata of one segment.

    Args:
        messages: the segment's messages, at least one, in delivery order
        bucket: the segment's bucket
        shard: the segment's shard
        number: the segment's number in the bucket and shard
        time_partition: the label of the segment's time partition
    """
    due = messages.column("deliver_at_ms")
    return Segment(
        bucket=bucket,
        shard=shard,
        segment=number,
        time_partition=time_partition,
        min_deliver_at_ms=due[0].as_py(),
        max_deliver_at_ms=due[-1].as_py(),
        count=messages.num_rows,
        bytes=int(_row_bytes(messages).sum()),
    )


def time_partition(deliver_at_ms: int, cutoff_ms: int, length_ms: int) -> tuple[str, int]:
    """Return the label of the time partition for a due time, and the partition's exclusive end in epoch ms.

    The label is `<start>-<end>` in epoch ms, and so shows when the partition can be deleted: 7,200,000 in partitions
    of an hour gives `000000007200000-000000010800000`. The nearest 48 partitions are `length_ms` long; later ones are
    longer, and aligned to their length.
    """
    ahead = (deliver_at_ms - cutoff_ms) // length_ms
    span = next(length_ms * times for reach, times in _PARTITION_SPANS if reach is None or ahead < reach)
    start = deliver_at_ms // span * span
    return f"{start:015d}-{start + span:015d}", start + span


def partition_end_ms(label: str) -> int:
    """Return the exclusive end, epoch ms, of the time partition with this label."""
    return int(label.split("-")[1])


def _row_bytes(messages: pa.Table) -> np.ndarray:
    """Return the approximate bytes of each message: key, value, headers, and a constant for the rest."""
    sizes = np.full(messages.num_rows, 64, dtype=np.int64)
    for name in ("key", "value"):
        sizes += pc.binary_length(messages.column(name)).fill_null(0).to_numpy().astype(np.int64)
    start = 0
    for headers in messages.column("headers").chunks:
        sizes[start : start + len(headers)] += _header_bytes(headers)
        start += len(headers)
    return sizes


def _header_bytes(headers: pa.ListArray) -> np.ndarray:
    flat = headers.flatten()
    lengths = np.zeros(len(flat), dtype=np.int64)
    for name in ("key", "value"):
        lengths += np.asarray(pc.binary_length(pc.struct_field(flat, name)).fill_null(0))
    rows = np.repeat(np.arange(len(headers)), np.asarray(pc.list_value_length(headers).fill_null(0)))
    return np.bincount(rows, lengths, minlength=len(headers)).astype(np.int64)
