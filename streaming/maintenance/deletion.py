"""The service that deletes Delta partitions that nothing needs: staged parts, and abandoned merges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from conf.failpoints import failpoint
from sinks.buckets.bucket_table import BucketTable
from state.buckets.parts import chunks_of, marker_of, metadata_of
from state.buckets.segments import Segment
from streaming.maintenance.failures import DELETE
from streaming.maintenance.step import Moment, Outcome, Step

log = logging.getLogger(__name__)

_EVERY_S = 60.0


class Deletion:
    """Knows which parts the table has, and deletes them."""

    kind = DELETE

    def __init__(
        self,
        store: BucketTable,
        parts: dict[str, int],
        abandoned: Iterable[str],
        deleted: Callable[[], None],
    ) -> None:
        """Delete nothing yet.

        Args:
            store: the table of sealed buckets.
            parts: the parts that the table has, and the last due time in each (epoch ms).
            abandoned: the Delta partitions that merges of an earlier process have left.
            deleted: is called after each deletion.
        """
        self._store = store
        self._parts = parts
        self._abandoned = set(abandoned)
        self._deleted = deleted
        # A merge removes what it replaces when it is finished. Until then its slices read that: in Delta, what a commit
        # has read and another one has deleted meanwhile is a conflict, and fails it.
        self._in_use: set[str] = set()
        self._next_s = 0.0

    def add(self, segments: Iterable[Segment]) -> None:
        """Add the parts of `segments`."""
        for segment in segments:
            last_ms = max(self._parts.get(segment.part, 0), segment.max_deliver_at_ms)
            self._parts[segment.part] = last_ms

    def hold(self, parts: Iterable[str]) -> None:
        """Do not delete `parts`, which a merge reads."""
        self._in_use |= set(parts)

    def let_go(self, parts: Iterable[str]) -> None:
        """Delete `parts` once they are staged: no merge reads them any more."""
        self._in_use -= set(parts)

    def replaced(self, parts: Iterable[str]) -> None:
        """Record that a merge has removed `parts`."""
        for part in parts:
            self._parts.pop(part, None)

    def abandon(self, partitions: Iterable[str]) -> None:
        """Delete `partitions` next, which nothing needs."""
        self._abandoned |= set(partitions)

    def due(self, at: Moment) -> Step | None:
        """See `Service.due`."""
        if at.now_s < self._next_s:
            return None
        gone = {part for part, last_ms in self._parts.items() if last_ms < at.staged_before_ms} - self._in_use
        left = self._parts.keys() - gone
        partitions = {chunks_of(part) for part in gone} | {metadata_of(part) for part in gone} | self._abandoned
        # The marker of a merged bucket goes with the last of its parts.
        partitions |= set(filter(None, map(marker_of, gone))) - set(map(marker_of, left))
        if not partitions:
            return None
        self._next_s = at.now_s + _EVERY_S
        return Step(self.kind, "a deletion", partial(self._delete, gone, partitions), [self.kind])

    def _delete(self, gone: set[str], partitions: set[str]) -> Outcome:
        log.info("deleting %d partitions of staged or abandoned messages", len(partitions))
        failpoint("cleaning")
        self._store.delete(partitions)
        return partial(self._forget, gone, partitions)

    def _forget(self, gone: set[str], partitions: set[str]) -> None:
        self.replaced(gone)
        self._abandoned -= partitions
        self._deleted()
