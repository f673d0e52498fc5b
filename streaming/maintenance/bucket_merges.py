"""The service that merges sealed buckets: what follows when a merge is due, is finished, or has failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from streaming.maintenance.deletion import Deletion
from streaming.maintenance.failures import MERGE, Failures
from streaming.maintenance.merge import Merge
from streaming.maintenance.merge_plan import MergePlan, MergeRules
from streaming.maintenance.merge_queue import FailedMerge, MergeQueue
from streaming.maintenance.merging import Merging
from streaming.maintenance.step import Moment
from streaming.monitor.job_status import LastMerge, Merges


class BucketMerges:
    """Begins the merges of a plan, and takes over what the threads of `Merging` have done.

    Only the query's thread may use it.
    """

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
        self._deletion = deletion
        self._failures = failures
        self._files_left = files_left
        self._plan = MergePlan(catalog, rules, failures)
        self._queue = MergeQueue()
        self._merging = Merging(store, self._queue, rules.batch_settings, rules.threads, initializer)
        self._merges: list[Merge] = []
        # Merges that failed at their end, and are not in the queue again yet.
        self._unfinished: list[Merge] = []
        self._finished = 0
        self._last: LastMerge | None = None

    def sealed(self) -> None:
        """Take note that the catalog has a new bucket."""
        self._plan.changed()

    def go_on(self, at: Moment) -> None:
        """Take over what the threads have done, plan the merges that are due, and let the threads go on.

        Raises the error of a merge that must end the job.
        """
        self._merging.take_over()
        for merge in self._queue.take_finished():
            self._adopt(merge)
        for failed in self._queue.take_failed():
            self._set_aside(failed)
        for merge in self._queue.take_sliced():
            self._finish(merge, at)
        aside = self._failures.waiting(MERGE)
        for merge in [merge for merge in self._unfinished if aside.isdisjoint(merge.buckets)]:
            self._unfinished.remove(merge)
            self._queue.finish(merge)
        for merge in self._plan.due(at.last_bucket, self._merges):
            self._merges.append(merge)
            self._deletion.hold(merge.parts)
            self._queue.begin(merge)
        self._merging.go_on(self._queue.go_on(at.last_bucket, at.staged_before_ms))

    @property
    def far_behind(self) -> bool:
        """Whether more buckets wait than there should be, even when merges are behind (`MergePlan.far_behind`)."""
        return self._plan.far_behind

    @property
    def busy(self) -> bool:
        """Whether a thread works, or has done something that is not taken over yet."""
        return self._merging.busy or self._queue.has_results

    @property
    def since_start(self) -> Merges:
        """The merges since the start."""
        running = len(self._merges) - len(self._unfinished)
        return Merges(running, self._finished, self._queue.worked_s, self._last)

    def wait(self, timeout_s: float) -> None:
        """Wait until the threads find nothing more to do, at the longest for `timeout_s` seconds."""
        self._merging.wait(timeout_s)

    def close(self) -> None:
        """Let the running steps end, and start no more."""
        self._merging.close()

    def _finish(self, merge: Merge, at: Moment) -> None:
        try:
            merge.check(at.staged_before_ms)
        except BucketUnreadable as problem:
            self._set_aside(FailedMerge(merge, problem, at_end=False))
            return
        self._finished += 1
        self._catalog.announce(merge.replaced, merge.merged)
        self._queue.finish(merge)

    def _adopt(self, merge: Merge) -> None:
        """Take over a finished merge."""
        self._merges.remove(merge)
        self._failures.remove(MERGE, merge.buckets)
        took_ms = int((time.monotonic() - merge.begun_s) * 1000)
        self._last = LastMerge(time.time_ns() // 1_000_000, took_ms, len(merge.buckets))
        self._deletion.let_go(merge.parts)
        self._deletion.replaced(merge.parts)
        if not merge.merged:
            # All messages were staged or cancelled meanwhile, so no part takes the marker with it.
            self._deletion.abandon([merge.name.live])
        self._deletion.add(merge.merged)
        self._catalog.replace(merge.buckets, merge.merged)
        self._plan.changed()
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
        self._plan.failed(merge)
        self._deletion.abandon(merge.partitions)
        self._files_left()


def _named(buckets: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(buckets)))
