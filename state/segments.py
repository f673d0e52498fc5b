"""Segments: how a sealed bucket is cut, and the metadata that stands for each cut.

After Pulsar's `DelayedIndexSnapshot` segments: cut by time step and by count, each described by its bounds
and its message-id bitmap, so that what is not needed is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from conf.rules import BatchRules

# Far messages are kept in coarser time partitions: a uniform year of delays would otherwise be 8,784 files
# for each bucket. The first column is how many time partitions ahead the rule reaches; the second, the span.
_COARSER = ((48, 1), (48 * 31, 24), (None, 24 * 28))


@dataclass(frozen=True)
class Segment:
    """One segment's metadata row. `(bucket, shard, segment)` is its identity.

    `bucket` is the number of the batch that sealed it. Instants are epoch ms, `max_deliver_at_ms` inclusive.
    The message-id bitmap is stored beside these, but the driver never holds it.
    """

    bucket: int
    shard: int
    segment: int
    time_partition: str
    min_deliver_at_ms: int
    max_deliver_at_ms: int
    count: int
    bytes: int


def cut(
    sealed: pa.Table, bucket: int, shard: int, cutoff_ms: int, rules: BatchRules
) -> Iterator[tuple[Segment, pa.Table]]:
    """Cut `sealed`, which is in delivery order, into segments with their metadata.

    No segment crosses a time partition, reaches over more than `segment_max_ms`, or holds more than
    `segment_max_messages` or `bucket_max_bytes` (a single message may be larger).
    """
    due = sealed.column("deliver_at_ms").to_numpy()
    sizes = _row_bytes(sealed)
    start, number = 0, 0
    while start < len(due):
        label, partition_end = time_partition(int(due[start]), cutoff_ms, rules.time_partition_ms)
        end_ms = min(partition_end, int(due[start]) + rules.segment_max_ms)
        end = min(int(np.searchsorted(due, end_ms, side="left")), start + rules.segment_max_messages)
        fitting = int(np.searchsorted(np.cumsum(sizes[start:end]), rules.bucket_max_bytes, side="right"))
        end = start + max(1, min(end - start, fitting))
        rows = sealed.slice(start, end - start)
        yield (
            Segment(
                bucket=bucket,
                shard=shard,
                segment=number,
                time_partition=label,
                min_deliver_at_ms=int(due[start]),
                max_deliver_at_ms=int(due[end - 1]),
                count=end - start,
                bytes=int(sizes[start:end].sum()),
            ),
            rows,
        )
        start, number = end, number + 1


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


def message_ids(rows: pa.Table) -> list[dict[str, object]]:
    """Return, for each input topic and partition in `rows`, the 64-bit Roaring bitmap of its offsets."""
    topics = rows.column("topic").dictionary_encode().combine_chunks()
    names = np.asarray(topics.indices)
    partitions = rows.column("partition").to_numpy()
    offsets = rows.column("offset").to_numpy()
    ids: list[dict[str, object]] = []
    for name, partition in sorted(set(zip(names.tolist(), partitions.tolist(), strict=True))):
        bitmap = BitMap64(offsets[(names == name) & (partitions == partition)].astype(np.uint64))
        bitmap.run_optimize()
        ids.append({"topic": topics.dictionary[name].as_py(), "partition": partition, "offsets": bitmap.serialize()})
    return ids
