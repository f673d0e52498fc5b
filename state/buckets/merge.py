"""Merging sealed buckets: choosing them, and turning the chunks of several buckets into the segments of one.

As in Pulsar's `BucketDelayedDeliveryTracker`, a few adjacent buckets with the fewest messages are chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count, groupby, pairwise
from operator import itemgetter

import pyarrow as pa

from state.buckets.segments import Segment, SegmentCutter
from state.buckets.table_rows import ArrowFunction, segment_rows
from state.buckets.window import keyed_chunks
from state.checkpoint.batch_settings import BatchSettings
from state.chunk_merge import merge
from state.order import OrderKey
from state.shards import by_shard

MAX_MERGED_BUCKETS = 4
# The messages of a slice. One task merges them in about a second; then other tasks get their turn. Slices are larger if
# there would be more than _MAX_SLICES.
_SLICE_MESSAGES = 100_000
_MAX_SLICES = 16
# Slice n numbers its segments from n times this. A segment number has 4 bytes: over a hundred slices of 16 million.
_SEGMENTS_PER_SLICE = 1 << 24


@dataclass(frozen=True)
class MergeSlice:
    """A range of due time, [start_ms, end_ms) in epoch ms, that one task merges. `number` counts slices from 0."""

    number: int
    start_ms: int
    end_ms: int


def choose(buckets: Mapping[int, Collection[Segment]], limit: int) -> list[int]:
    """Return the numbers of the buckets to merge, ascending; none if there are no more than `limit`.

    Chooses the run of up to four adjacent buckets that has the fewest messages; of equal runs, the one with the
    earliest message.
    """
    numbers = sorted(buckets)
    width = min(MAX_MERGED_BUCKETS, len(numbers))
    if len(numbers) <= limit or width < 2:
        return []
    sums = [0, *accumulate(sum(segment.count for segment in buckets[number]) for number in numbers)]
    firsts = [min(segment.min_deliver_at_ms for segment in buckets[number]) for number in numbers]
    starts = range(len(numbers) - width + 1)
    at = min(starts, key=lambda start: (sums[start + width] - sums[start], min(firsts[start : start + width])))
    return numbers[at : at + width]


def slices(segments: Collection[Segment], start_ms: int) -> list[MergeSlice]:
    """Divide the messages of `segments` that are due from `start_ms` on into ranges of about equal count."""
    size = max(_SLICE_MESSAGES, -(-sum(segment.count for segment in segments) // _MAX_SLICES))
    bounds, messages = [start_ms], 0
    for segment in sorted(segments, key=lambda segment: segment.min_deliver_at_ms):
        # Segments overlap, so the counts are approximate.
        if messages >= size and segment.min_deliver_at_ms > bounds[-1]:
            bounds.append(segment.min_deliver_at_ms)
            messages = 0
        messages += segment.count
    bounds.append(1 + max(segment.max_deliver_at_ms for segment in segments))
    return [MergeSlice(number, *ends) for number, ends in enumerate(pairwise(bounds))]


def merged_rows(bucket: int, within: MergeSlice, batch_settings: BatchSettings) -> ArrowFunction:
    """Return the `mapInArrow` function that merges stored chunks into rows of `table_rows.STORED_SCHEMA`.

    The input is sorted by `part`, then by the chunks' order keys (deliver_at_ms, topic, partition, offset). Messages
    stay in their time partition; `batch_settings` decide shards and segments.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = count(within.number * _SEGMENTS_PER_SLICE)
        for label, chunks in groupby(_labelled(batches, within), key=itemgetter(0)):
            ordered = merge((key, messages) for _, key, messages in chunks)
            for segment, messages in _cut(ordered, bucket, label, numbers, batch_settings):
                yield from segment_rows(segment, messages, batch_settings.index_precision_bits)

    return run


def _labelled(batches: Iterable[pa.RecordBatch], within: MergeSlice) -> Iterator[tuple[str, OrderKey, pa.Table]]:
    for batch in batches:
        chunks = keyed_chunks(iter([batch]), within.start_ms, within.end_ms)
        for label, (key, messages) in zip(batch.column("part").to_pylist(), chunks, strict=True):
            yield label, key, messages


def _cut(
    ordered: Iterable[pa.Table], bucket: int, label: str, numbers: Iterator[int], batch_settings: BatchSettings
) -> Iterator[tuple[Segment, pa.Table]]:
    cutters: dict[int, SegmentCutter] = {}
    for messages in ordered:
        for shard, own in by_shard(messages, batch_settings.shards):
            if shard not in cutters:
                cutters[shard] = SegmentCutter(bucket, shard, label, numbers, batch_settings)
            yield from cutters[shard].add(own)
    for cutter in cutters.values():
        yield from cutter.finish()
