"""What the driver knows of the sealed buckets: the metadata of every live segment, and nothing of their messages."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator

from sortedcontainers import SortedKeyList

from state.buckets.segments import Segment


class SegmentCatalog:
    """The live segments in order of their earliest message, and by bucket."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._buckets: dict[int, dict[tuple[int, int], Segment]] = {}
        self._by_start: SortedKeyList[Segment, int] = SortedKeyList(key=lambda segment: segment.min_deliver_at_ms)
        self.add(segments)

    def __len__(self) -> int:
        return len(self._by_start)

    @property
    def buckets(self) -> dict[int, Collection[Segment]]:
        """The live segments of each bucket that has any."""
        return {bucket: segments.values() for bucket, segments in self._buckets.items()}

    @property
    def messages(self) -> int:
        """How many messages the live segments hold, those of theirs that are delivered already included."""
        return sum(segment.count for segment in self._by_start)

    @property
    def nbytes(self) -> int:
        """Bytes of the segments' values, without the containers around them; a time partition's label counts once."""
        labels = {segment.time_partition for segment in self._by_start}
        return sum(map(sys.getsizeof, labels)) + sum(map(_size, self._by_start))

    def add(self, segments: Iterable[Segment]) -> list[Segment]:
        """Take in segments, and return those that were not known: a replayed batch seals what it sealed before."""
        fresh = []
        for segment in segments:
            bucket = self._buckets.setdefault(segment.bucket, {})
            if (segment.shard, segment.segment) not in bucket:
                bucket[segment.shard, segment.segment] = segment
                self._by_start.add(segment)
                fresh.append(segment)
        return fresh

    def replace(self, buckets: Iterable[int], segments: Iterable[Segment]) -> None:
        """Put `segments` in the place of all that is known of `buckets`."""
        for bucket in buckets:
            for segment in self._buckets.pop(bucket, {}).values():
                self._by_start.remove(segment)
        self.add(segments)

    def starting_before(self, end_ms: int) -> Iterator[Segment]:
        """Give the segments whose earliest message is due before `end_ms`."""
        return iter(self._by_start.irange_key(max_key=end_ms, inclusive=(True, False)))

    def overlapping(self, start_ms: int, end_ms: int) -> list[Segment]:
        """Return the segments that may hold a message due in [start_ms, end_ms)."""
        return [segment for segment in self.starting_before(end_ms) if segment.max_deliver_at_ms >= start_ms]

    def forget_before(self, cutoff_ms: int) -> list[Segment]:
        """Drop the segments that are delivered whole, and return them."""
        gone = [segment for segment in self.starting_before(cutoff_ms) if segment.max_deliver_at_ms < cutoff_ms]
        for segment in gone:
            self._by_start.remove(segment)
            bucket = self._buckets[segment.bucket]
            del bucket[segment.shard, segment.segment]
            if not bucket:
                del self._buckets[segment.bucket]
        return gone


def _size(segment: Segment) -> int:
    numbers = (segment.min_deliver_at_ms, segment.max_deliver_at_ms, segment.count, segment.bytes)
    return sys.getsizeof(segment) + sum(map(sys.getsizeof, numbers))
