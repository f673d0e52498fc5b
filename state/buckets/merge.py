"""Merging sealed buckets: choosing them, dividing the work into slices, and making segments of a slice.

The storage is log-structured: a bucket is sealed as it comes, whatever its due times, and adjacent buckets of about
the same size are merged into one. Its size is theirs times their number, the *fan-in*. So a message is rewritten once
for each power of the fan-in that its bucket grows by, and there are fewer buckets of each size than the fan-in.
(Pulsar's `BucketDelayedDeliveryTracker` merges the adjacent buckets with the fewest messages once there are more than a
limit. Tried with 10,000 buckets, a limit of 64 and 8 to a merge, each message was rewritten 17 times; here 3 times.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import ceil

import pyarrow as pa

from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.segments import ANY_SHARD, Segment, SegmentCutter
from state.buckets.table_rows import ArrowFunction, segment_rows
from state.buckets.window import stored_messages
from state.checkpoint.batch_settings import BatchSettings

# The size of a slice. One task merges it in some seconds; then other tasks get their turn. The plan and the commit of a
# slice also cost two to three seconds of Java's time, the same as merging a million messages.
SLICE_MESSAGES = 1_000_000
SLICE_BYTES = 128 * 1024 * 1024
# A flood of some minutes is taken in at full speed, and is merged when it is over.
_BEHIND = 2


@dataclass(frozen=True)
class MergeSlice:
    """A range of due time, [start_ms, end_ms) in epoch ms, that one task merges into the part `part`.

    `first_segment` is the number of its first segment.
    """

    part: str
    start_ms: int
    end_ms: int
    first_segment: int


def choose(sizes: Mapping[int, int], fan_in: int) -> list[int]:
    """Return the numbers of the buckets to merge, ascending and adjacent; none if there are few of each size.

    A bucket's level is the power of `fan_in` in its size, and at least the level of every newer bucket: so levels
    descend from the oldest to the newest. In the lowest level that has `fan_in` buckets, the run of two to `fan_in`
    adjacent ones is merged that rewrites the fewest bytes for each bucket less: if one of them is far larger than all
    others, it is left alone until there are others of its size.

    Args:
        sizes: the bytes of each bucket, by its number
        fan_in: the maximum number of buckets in a merge, 2 or more
    """
    numbers = sorted(sizes)
    end = len(numbers)
    while end:
        level = _level(sizes[numbers[end - 1]], fan_in)
        start = end - 1
        while start and _level(sizes[numbers[start - 1]], fan_in) <= level:
            start -= 1
        if end - start >= fan_in:
            return _cheapest(numbers[start:end], sizes, fan_in)
        end = start
    return []


def _cheapest(numbers: list[int], sizes: Mapping[int, int], fan_in: int) -> list[int]:
    sums = [0, *accumulate(sizes[number] for number in numbers)]
    # The widest first, and the oldest of these: the first one wins if several are as cheap.
    runs = ((at, width) for width in range(fan_in, 1, -1) for at in range(len(numbers) - width + 1))
    at, width = min(runs, key=lambda run: (sums[run[0] + run[1]] - sums[run[0]]) / (run[1] - 1))
    return numbers[at : at + width]


def most_buckets(total_bytes: int, fan_in: int) -> int:
    """Return how many buckets may wait at most when `total_bytes` are sealed and no merge is behind."""
    return (fan_in - 1) * (1 + _level(total_bytes, fan_in))


def most_behind(total_bytes: int, fan_in: int) -> int:
    """Return how many buckets may wait when merges are behind. With more, a batch waits for merges before it seals."""
    return _BEHIND * most_buckets(total_bytes, fan_in)


def slice_end(segments: Iterable[Segment], start_ms: int) -> int | None:
    """Return where the slice of `segments` from `start_ms` on ends, epoch ms exclusive; None if nothing is left.

    It ends once it has about `SLICE_MESSAGES` messages or `SLICE_BYTES` bytes. The messages of a segment are assumed to
    be evenly spread. If they are not, a slice may have more: at most all messages of the segments that reach into it.
    """
    # How fast a slice fills, in slices for each ms, changes where a segment begins or ends.
    changes: defaultdict[int, float] = defaultdict(float)
    for segment in segments:
        end_ms = segment.max_deliver_at_ms + 1
        if end_ms > start_ms:
            share = max(segment.count / SLICE_MESSAGES, segment.bytes / SLICE_BYTES)
            rate = share / (end_ms - segment.min_deliver_at_ms)
            changes[max(start_ms, segment.min_deliver_at_ms)] += rate
            changes[end_ms] -= rate
    if not changes:
        return None
    filled = rate = 0.0
    instants = sorted(changes)
    for at_ms, next_ms in pairwise(instants):
        rate += changes[at_ms]
        if filled + rate * (next_ms - at_ms) >= 1:
            return max(start_ms + 1, min(next_ms, at_ms + ceil((1 - filled) / rate)))
        filled += rate * (next_ms - at_ms)
    return instants[-1]


def slices(segments: Iterable[Segment], start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of due time (epoch ms) which together have the messages of `segments` due in [start_ms, end_ms).

    Each is as large as a slice of a merge.
    """
    every = list(segments)
    while start_ms < end_ms and (next_ms := slice_end(every, start_ms)) is not None:
        yield start_ms, min(next_ms, end_ms)
        start_ms = next_ms


def merged_rows(
    bucket: int, within: MergeSlice, batch_settings: BatchSettings, cancelled: CancelledFilter | None = None
) -> ArrowFunction:
    """Return the `mapInArrow` function that merges stored chunks into rows of `table_rows.STORED_SCHEMA`.

    The input is the same as for `stored_messages`. The messages of all shards stay together. So a window reads one
    chunk too many of a bucket, instead of one for each shard.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cutter = SegmentCutter(bucket, ANY_SHARD, within.part, count(within.first_segment), batch_settings)
        for segment, messages in cutter.cut(stored_messages(batches, within.start_ms, within.end_ms, cancelled)):
            yield from segment_rows(segment, messages, batch_settings.index_precision_bits)

    return run


def _level(size: int, fan_in: int) -> int:
    """Return the exponent of the largest power of `fan_in` that is not above `size`; 0 for an empty bucket."""
    level = 0
    while size >= fan_in ** (level + 1):
        level += 1
    return level
