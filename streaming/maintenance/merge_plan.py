"""Which merges are due: adjacent buckets of about one size, as far as nothing else is done with them."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import NamedTuple

from state.buckets.catalog import SegmentCatalog
from state.buckets.merge import choose, most_behind
from state.buckets.parts import MergeName
from state.buckets.segments import Segment
from state.checkpoint.batch_settings import BatchSettings
from streaming.maintenance.failures import MERGE, Failures
from streaming.maintenance.merge import Merge
from streaming.maintenance.stretches import stretches


class MergeRules(NamedTuple):
    """How merges are made.

    - `batch_settings`: how a merge cuts segments
    - `token`: for the merges of this process; Delta refuses merges with an earlier token
    - `fan_in`: how many buckets a merge has
    - `threads`: how many slices of merges may run at the same time
    """

    batch_settings: BatchSettings
    token: int
    fan_in: int
    threads: int = 1


class MergePlan:
    """Knows which buckets no merge has considered, and which ones are set aside. Only the query's thread may use it."""

    def __init__(self, catalog: SegmentCatalog, rules: MergeRules, failures: Failures) -> None:
        self._catalog = catalog
        self._rules = rules
        self._failures = failures
        # How many merges that have a bucket have failed.
        self._attempts: dict[int, int] = {}
        self._aside: set[Hashable] = set()
        # Whether the catalog has buckets that no plan of merges has considered.
        self._unplanned = True

    def changed(self) -> None:
        """Take note that the catalog has a new bucket."""
        self._unplanned = True

    def failed(self, merge: Merge) -> None:
        """Let no other merge of these buckets have the name of one that has failed."""
        self._attempts |= dict.fromkeys(merge.buckets, merge.name.attempt + 1)

    def due(self, last_bucket: int, running: Collection[Merge]) -> list[Merge]:
        """Return the merges that are due, other than those that are `running`.

        Buckets later than `last_bucket` may be sealed again by a replay.
        """
        aside = self._failures.waiting(MERGE)
        if not self._unplanned and aside == self._aside:
            return []
        self._aside = aside
        all_buckets = self._catalog.buckets
        self._unplanned = any(number > last_bucket for number in all_buckets)
        self._attempts = {number: tried for number, tried in self._attempts.items() if number in all_buckets}
        taken = self._aside.union(*(merge.buckets for merge in running))
        buckets = {number: segments for number, segments in all_buckets.items() if number <= last_bucket}
        due = []
        for stretch in stretches(buckets, taken):
            sizes = {number: sum(segment.bytes for segment in buckets[number]) for number in stretch}
            if chosen := choose(sizes, self._rules.fan_in):
                due.append(self._merge_of({number: buckets[number] for number in chosen}))
        tried = [number for merge in (*running, *due) for number in merge.buckets]
        self._failures.keep(MERGE, all_buckets.keys(), tried)
        return due

    @property
    def far_behind(self) -> bool:
        """Whether more buckets wait than there should be, even when merges are behind.

        Buckets that are set aside do not count: nothing merges them now. They divide those around them.
        """
        buckets = self._catalog.buckets
        if len(buckets) <= most_behind(0, self._rules.fan_in):
            # At once, as nearly always: there may be a million segments.
            return False
        for stretch in stretches(buckets, self._aside):
            stored = sum(segment.bytes for number in stretch for segment in buckets[number])
            if len(stretch) > most_behind(stored, self._rules.fan_in):
                return True
        return False

    def _merge_of(self, buckets: dict[int, Collection[Segment]]) -> Merge:
        attempt = max(self._attempts.get(number, 0) for number in buckets)
        name = MergeName(min(buckets), max(buckets), self._rules.token, attempt)
        return Merge(name, {number: list(segments) for number, segments in buckets.items()})
