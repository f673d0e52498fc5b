"""The service that merges sealed buckets: which merges begin, and what follows when one is finished or has failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import NamedTuple

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.merge import choose, most_behind
from state.buckets.parts import MergeName
from state.buckets.segments import Segment
from state.checkpoint.batch_settings import BatchSettings
from streaming.maintenance.deletion import Deletion
from streaming.maintenance.failures import MERGE, Failures
from streaming.maintenance.merge import Merge
from streaming.maintenance.merging import FailedMerge, Merging
from streaming.maintenance.step import Moment
from streaming.maintenance.stretches import stretches
from streaming.monitor.job_status import LastMerge, Merges


class MergeRules(NamedTuple):
    """How merges are made.

    - `batch_settings`: how a merge cuts segments
    - `token`: for the merges of this process; Delta refuses those of an earlier one
    - `fan_in`: how many buckets a merge has
    - `threads`: how many slices of merges may run at the same time
    """

    batch_settings: BatchSettings
    token: int
    fan_in: int
    threads: int


class BucketMerges:
    """Plans merges, and takes over what the threads of `Merging` have done. Only the query's thread may use it."""

    def __init__(
        self,
        store: BucketTable,
        catalog: SegmentCatalog,
        rules: MergeRules,
        deletion: Deletion,
        failures: Failures,
        files_left: Callable[[], None],
        initializer: Callable[[], None],
    ) -> None:
        """Plan nothing yet.

        `files_left` is called when files of the table are of no use any more, and `initializer` in each thread.
        """
        self._catalog = catalog
        self._rules = rules
        self._deletion = deletion
        self._failures = failures
        self._files_left = files_left
        self._merging = Merging(store, rules.batch_settings, rules.threads, initializer)
        self._merges: list[Merge] = []
        # Those whose end failed, and has not begun again.
        self._unfinished: list[Merge] = []
        self._finished = 0
        self._last: LastMerge | None = None
        # How many merges that have a bucket have failed.
        self._attempts: dict[int, int] = {}
        self._aside: set[Hashable] = set()
        # Whether the catalog has buckets that no plan of merges has considered.
        self._unplanned = True

    def sealed(self) -> None:
        """Take note that the catalog has a new bucket."""
        self._unplanned = True

    def go_on(self, at: Moment) -> None:
        """Take over what the threads have done, plan the merges that are due, and let the threads go on.

        Raises the error of a merge that must end the job.
        """
        for merge in self._merging.take_finished():
            self._adopt(merge)
        for failed in self._merging.take_failed():
            self._set_aside(failed)
        for merge in self._merging.take_sliced():
            self._finish(merge, at)
        aside = self._failures.waiting(MERGE)
        for merge in [merge for merge in self._unfinished if aside.isdisjoint(merge.buckets)]:
            self._unfinished.remove(merge)
            self._merging.finish(merge)
        if self._unplanned or aside != self._aside:
            self._aside = aside
            self._plan(at.last_bucket)
        self._merging.go_on(at.last_bucket, at.handed_over_before_ms)

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

    @property
    def busy(self) -> bool:
        """Whether a thread works, or has done something that is not taken over yet."""
        return self._merging.busy

    @property
    def since_start(self) -> Merges:
        """The merges since the start."""
        running = len(self._merges) - len(self._unfinished)
        return Merges(running, self._finished, self._merging.worked_s, self._last)

    def wait(self, timeout_s: float) -> None:
        """Wait until the threads find nothing more to do, at the longest for `timeout_s` seconds."""
        self._merging.wait(timeout_s)

    def close(self) -> None:
        """Let the running steps end, and start no more."""
        self._merging.close()

    def _plan(self, last_bucket: int) -> None:
        """Begin the merges that are due. Buckets later than `last_bucket` may be sealed again by a replay."""
        all_buckets = self._catalog.buckets
        self._unplanned = any(number > last_bucket for number in all_buckets)
        self._attempts = {number: tried for number, tried in self._attempts.items() if number in all_buckets}
        taken = self._aside.union(*(merge.buckets for merge in self._merges))
        buckets = {number: segments for number, segments in all_buckets.items() if number <= last_bucket}
        for stretch in stretches(buckets, taken):
            sizes = {number: sum(segment.bytes for segment in buckets[number]) for number in stretch}
            if chosen := choose(sizes, self._rules.fan_in):
                self._begin(chosen, buckets)
        self._failures.keep(MERGE, all_buckets.keys(), [number for merge in self._merges for number in merge.buckets])

    def _begin(self, numbers: list[int], buckets: dict[int, Collection[Segment]]) -> None:
        attempt = max(self._attempts.get(number, 0) for number in numbers)
        name = MergeName(min(numbers), max(numbers), self._rules.token, attempt)
        merge = Merge(name, {number: list(buckets[number]) for number in numbers})
        self._merges.append(merge)
        self._deletion.hold(merge.parts)
        self._merging.begin(merge)

    def _finish(self, merge: Merge, at: Moment) -> None:
        try:
            merge.check(at.handed_over_before_ms)
        except BucketUnreadable as problem:
            self._set_aside(FailedMerge(merge, problem, at_end=False))
            return
        self._finished += 1
        self._catalog.announce(merge.replaced, merge.merged)
        self._merging.finish(merge)

    def _adopt(self, merge: Merge) -> None:
        """Take over a finished merge."""
        self._merges.remove(merge)
        self._failures.remove(MERGE, merge.buckets)
        took_ms = int((time.monotonic() - merge.begun_s) * 1000)
        self._last = LastMerge(time.time_ns() // 1_000_000, took_ms, len(merge.buckets))
        self._deletion.let_go(merge.parts)
        self._deletion.replaced(merge.parts)
        if not merge.merged:
            # All was handed over or cancelled meanwhile: no part takes the marker with it.
            self._deletion.abandon([merge.name.live])
        self._deletion.add(merge.merged)
        self._catalog.replace(merge.buckets, merge.merged)
        self._unplanned = True
        self._files_left()

    def _set_aside(self, failed: FailedMerge) -> None:
        """Leave the buckets of a merge alone for a while.

        If its end failed, the table may have either the merged bucket or those before: it is ended again. Otherwise its
        slices are of no use. They may be in the table without this process knowing it, so no other merge gets its name.
        """
        merge = failed.merge
        what = f"the merge of buckets {_named(merge.buckets)}"
        self._failures.add(MERGE, merge.buckets, what, failed.problem)
        if failed.at_end:
            self._unfinished.append(merge)
            return
        self._merges.remove(merge)
        self._deletion.let_go(merge.parts)
        self._attempts |= dict.fromkeys(merge.buckets, merge.name.attempt + 1)
        self._deletion.abandon(merge.partitions)
        self._files_left()


def _named(buckets: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(buckets)))
