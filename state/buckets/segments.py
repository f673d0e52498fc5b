"""Segments: how a sealed bucket is cut, and the metadata that stands for each cut.

After Pulsar's `DelayedIndexSnapshot` segments: cut by time step and by count, each described by its bounds
and its message ids, so that what is not needed is never read.
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

# Far messages are kept in coarser time partitions: a uniform year of delays would otherwise be 8,784 files
# for each bucket. The first column is how many time partitions ahead the rule reaches; the second, the span.
_COARSER = ((48, 1), (48 * 31, 24), (None, 24 * 28))


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment's metadata row. `(bucket, shard, segment)` is its identity.

    `bucket` is the number of the batch that sealed it, counted on through every checkpoint of the application; of
    merged buckets, the newest one's. Instants are epoch ms, `max_deliver_at_ms` inclusive. The entries of the
    message-id index are stored beside these (`state.buckets.table_rows`), but the driver never holds them.
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
        # A label stands in thousands of segments, and would be a text of its own in each.
        object.__setattr__(self, "time_partition", sys.intern(self.time_partition))


class SegmentCutter:
    """Cuts the messages of one shard in one time partition, which come in delivery order, piece by piece.

    No segment reaches over more than `segment_max_ms`, or holds more than `segment_max_messages` or
    `bucket_max_bytes` (a single message may be larger).
    """

    def __init__(
        self, bucket: int, shard: int, time_partition: str, numbers: Iterator[int], batch_settings: BatchSettings
    ) -> None:
        """`numbers` gives the segments their numbers; they must be unique in the bucket and shard."""
        self._bucket, self._shard, self._time_partition = bucket, shard, time_partition
        self._numbers = numbers
        self._batch_settings = batch_settings
        self._open: list[pa.Table] = []

    def add(self, messages: pa.Table) -> Iterator[tuple[Segment, pa.Table]]:
        """Take in the next messages, and give the segments that are complete by them."""
        self._open.append(messages)
        full = sum(table.num_rows for table in self._open) > self._batch_settings.segment_max_messages
        if full or sum(table.nbytes for table in self._open) > self._batch_settings.bucket_max_bytes:
            yield from self._cut(keep_last=True)

    def finish(self) -> Iterator[tuple[Segment, pa.Table]]:
        """Give what is left."""
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
    """Cut `sealed`, which is in delivery order, into segments with their metadata, none across a time partition."""
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
    """Describe `messages`, which are in delivery order, as the segment `number` of a bucket and shard."""
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
    """Return the label of the time partition that takes a message, and its exclusive end in epoch ms.

    The label is `<start>-<end>` in epoch ms, so that it says by itself when it can be deleted. The nearest
    48 partitions are `length_ms` long; what is due later goes into longer ones, aligned to their length.
    """
    ahead = (deliver_at_ms - cutoff_ms) // length_ms
    span = next(length_ms * times for reach, times in _COARSER if reach is None or ahead < reach)
    start = deliver_at_ms // span * span
    return f"{start:015d}-{start + span:015d}", start + span


def partition_end_ms(label: str) -> int:
    """Return the exclusive end, epoch ms, that a time partition's label names."""
    return int(label.split("-")[1])


def _row_bytes(messages: pa.Table) -> np.ndarray:
    """Return about how many bytes each message takes: key, value, headers, and a constant for the rest."""
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
