"""What the driver knows of the sealed buckets: the metadata of every live segment, and nothing of their messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedKeyList

from state.segments import Segment


class SegmentCatalog:
    """The live segments in order of their earliest message."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._known: set[tuple[int, int, int]] = set()
        self._by_start: SortedKeyList = SortedKeyList(key=lambda segment: segment.min_deliver_at_ms)
        self.add(segments)

    def __len__(self) -> int:
        return len(self._by_start)

    def add(self, segments: Iterable[Segment]) -> list[Segment]:
        """Take in segments, and return those that were not known: a replayed batch seals what it sealed before."""
        fresh = []
        for segment in segments:
            identity = (segment.bucket, segment.shard, segment.segment)
            if identity not in self._known:
                self._known.add(identity)
                self._by_start.add(segment)
                fresh.append(segment)
        return fresh

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
            self._known.discard((segment.bucket, segment.shard, segment.segment))
        return gone
