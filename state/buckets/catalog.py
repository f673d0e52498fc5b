"""The driver's list of sealed buckets: the metadata of every live segment, without messages."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator

from sortedcontainers import SortedKeyList

from state.buckets.parts import following_part, sealed_part
from state.buckets.segments import Segment


class SegmentCatalog:
    """The live segments, ordered by their earliest message and grouped by bucket."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._buckets: dict[int, dict[tuple[int, int], Segment]] = {}
        self._by_start: SortedKeyList[Segment, int] = SortedKeyList(key=lambda segment: segment.min_deliver_at_ms)
        # By bucket of a merge that is about to be finished: the parts that replace it.
        self._successors: dict[int, frozenset[str]] = {}
        self.add(segments)

    def __len__(self) -> int:
        return len(self._by_start)

    @property
    def buckets(self) -> dict[int, Collection[Segment]]:
        """The live segments by bucket; a bucket without live segments is absent."""
        return {bucket: segments.values() for bucket, segments in self._buckets.items()}

    @property
    def messages(self) -> int:
        """The number of messages in the live segments, including messages that are already staged."""
        return sum(segment.count for segment in self._by_start)

    @property
    def may_repeat(self) -> bool:
        """Whether any message in the live segments repeats, including messages that are already staged."""
        return any(segment.repeats for segment in self._by_start)

    @property
    def nbytes(self) -> int:
        """Bytes of the segments' values, without their containers; each part's name counts once."""
        return metadata_bytes(self._by_start)

    def add(self, segments: Iterable[Segment]) -> list[Segment]:
        """Add the segments of whole buckets, and return the new ones.

        A bucket that is known already keeps its segments: the batch that sealed it was replayed. But its part with
        following occurrences may be new, because it is stored later.
        """
        several = list(segments)
        parts = {each.bucket: {known.part for known in self._buckets.get(each.bucket, {}).values()} for each in several}
        new = {
            (each.bucket, each.shard, each.segment): each
            for each in several
            if not parts[each.bucket]
            or (each.part == following_part(each.bucket) and parts[each.bucket] == {sealed_part(each.bucket)})
        }
        for segment in new.values():
            self._buckets.setdefault(segment.bucket, {})[segment.shard, segment.segment] = segment
        self._by_start.update(new.values())
        return list(new.values())

    def announce(self, replaced: Iterable[Segment], merged: Iterable[Segment]) -> None:
        """Record that a merge is about to be finished: the table may soon have `merged` in place of `replaced`.

        It has either, whatever its version. So a reader asks for both (`parts_of`) until `replace` is called.
        """
        successors = frozenset(segment.part for segment in merged)
        self._successors |= {segment.bucket: successors for segment in replaced}

    def replace(self, buckets: Iterable[int], merged: Iterable[Segment]) -> None:
        """Replace all segments of `buckets` by `merged`."""
        for bucket in buckets:
            for segment in self._buckets.pop(bucket, {}).values():
                self._by_start.remove(segment)
            self._successors.pop(bucket, None)
        self.add(merged)

    def parts_of(self, segments: Iterable[Segment]) -> set[str]:
        """Return the parts that have the messages of `segments`, in any version of the table that may be read now."""
        parts, buckets = set[str](), set[int]()
        for segment in segments:
            parts.add(segment.part)
            buckets.add(segment.bucket)
        return parts.union(*(self._successors.get(bucket, ()) for bucket in buckets))

    def unannounced(self, segments: Iterable[Segment]) -> list[Segment]:
        """Return the segments that no announced merge replaces: every readable version has all their messages.

        The merged part lacks the messages that were cancelled before the merge.
        """
        return [segment for segment in segments if segment.bucket not in self._successors]

    def starting_before(self, end_ms: int) -> Iterator[Segment]:
        """Return the segments with a message due before `end_ms`, ordered by their earliest message."""
        return iter(self._by_start.irange_key(max_key=end_ms, inclusive=(True, False)))

    def overlapping(self, start_ms: int, end_ms: int) -> list[Segment]:
        """Return the segments that may hold a message due in [start_ms, end_ms)."""
        return [segment for segment in self.starting_before(end_ms) if segment.max_deliver_at_ms >= start_ms]

    def forget_before(self, cutoff_ms: int) -> list[Segment]:
        """Remove and return the segments with no message due at `cutoff_ms` or later."""
        staged = [segment for segment in self.starting_before(cutoff_ms) if segment.max_deliver_at_ms < cutoff_ms]
        for segment in staged:
            self._by_start.remove(segment)
            bucket = self._buckets[segment.bucket]
            del bucket[segment.shard, segment.segment]
            if not bucket:
                del self._buckets[segment.bucket]
        return staged


def metadata_bytes(segments: Iterable[Segment]) -> int:
    """Return the bytes of the values of `segments`, without their containers; each part's name counts once."""
    several = list(segments)
    return sum(map(sys.getsizeof, {segment.part for segment in several})) + sum(map(_size, several))


def _size(segment: Segment) -> int:
    numbers = (segment.min_deliver_at_ms, segment.max_deliver_at_ms, segment.count, segment.bytes)
    return sys.getsizeof(segment) + sum(map(sys.getsizeof, numbers))
