"""The schedule of maintenance: which steps run beside the batches, and when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import groupby

from conf.failpoints import failpoint
from conf.setting_types import HOUR
from sinks.bucket_table import BucketTable
from state.buckets.cancelled import NOTHING_FORGETTABLE, Forgettable
from state.buckets.catalog import SegmentCatalog
from state.buckets.merge import choose, most_behind
from state.buckets.parts import IdRows, MergeName, chunks_of, marker_of, metadata_of
from state.buckets.segments import Segment
from state.checkpoint.batch_settings import BatchSettings
from streaming.maintenance.merge import Merge
from streaming.maintenance.merging import Merging
from streaming.monitor.job_status import LastMerge, Merges

log = logging.getLogger(__name__)

_DELETE_EVERY_S = 60.0
_LOOK_EVERY_S = 0.2
_CLEAN_LOG_EVERY_S = 600.0
# How often each Delta partition of cancelled ids is written anew, without those that are of no use any more. Until
# there are enough of its size to be joined with, a year may pass if ids are known for a month.
_FORGET_EVERY_S = 86_400.0
# A process may not live for a day.
_FIRST_FORGET_S = 3_600.0
# The table's retention time, which counts by the wall clock, and a minute for the difference between clocks.
_KEPT_S = 3660.0
# An earlier run may have left files. Not at once, since a start has other things to do.
_FIRST_VACUUM_S = 300.0
# The scheduler pool in Spark.
_POOL = "maintenance"
# About what an id takes in the table.
_ROW_BYTES = {IdRows.CANCELLED: 24, IdRows.NAMED: 44}
# Rows of messages that were due this long ago, in ms, are not needed any more. Longer than `clock.horizon` may be: a
# batch asks for what has a name until it is due and handed over, and its replay must find the same.
_IDS_KEPT_MS = 2 * HOUR
# What the query's thread does once a step has ended.
_Outcome = Callable[[], None]


class Maintenance:
    """Deletes parts that are delivered whole, merges buckets slice by slice, vacuums, and cleans the table's log.

    All of it runs in other threads: merges in theirs (`Merging`), the rest in one, a step at a time. Only the query's
    thread uses the catalog.
    """

    def __init__(
        self,
        store: BucketTable,
        catalog: SegmentCatalog,
        parts: dict[str, int],
        abandoned: Iterable[str],
        batch_settings: BatchSettings,
        token: int,
        fan_in: int,
        threads: int = 1,
        id_rows: Mapping[IdRows, Mapping[int, int]] | None = None,
        forgettable: Callable[[int], Forgettable] = lambda _: NOTHING_FORGETTABLE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the threads in which the steps run.

        Args:
            store: the table of sealed buckets.
            catalog: the metadata of the live segments; a merge replaces segments in it.
            parts: the parts that the table has, and the last due time in each (epoch ms).
            abandoned: the Delta partitions that merges of an earlier process have left, and nothing needs.
            batch_settings: how a merge cuts segments.
            token: for the merges of this process; Delta refuses those of an earlier one.
            fan_in: how many buckets a merge has.
            threads: how many slices of merges may run at the same time.
            id_rows: the bytes of each Delta partition of rows of a kind, by the bucket in its name.
            forgettable: returns which cancelled ids are of no use any more, given the cutoff (epoch ms) below which
                everything is delivered.
            now: a clock that returns seconds.
        """
        self._store = store
        self._catalog = catalog
        self._parts = parts
        self._abandoned = set(abandoned)
        self._id_rows = {kind: dict((id_rows or {}).get(kind, {})) for kind in IdRows}
        self._forgettable = forgettable
        self._batch_settings = batch_settings
        self._token = token
        self._fan_in = fan_in
        self._merges: list[Merge] = []
        self._merging = Merging(store, batch_settings, threads, self._set_pool)
        self._finished = 0
        self._last: LastMerge | None = None
        # Whether the catalog has buckets that no plan of merges has considered.
        self._unplanned = True
        self._step: Future[_Outcome] | None = None
        self._woken = threading.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="maintenance", initializer=self._set_pool)
        self._now = now
        self._next_delete = now()
        self._next_log = now() + _CLEAN_LOG_EVERY_S
        # And the bucket of the Delta partition whose cancelled ids were forgotten last.
        self._next_forget, self._forgot = now() + _FIRST_FORGET_S, -1
        self._leftovers = _Leftovers(now())

    def sealed(self, segments: Iterable[Segment]) -> None:
        """Add the parts of a bucket that a batch has sealed."""
        self._add_parts(segments)
        self._unplanned = True

    def stored(self, kind: IdRows, bucket: int, count: int) -> None:
        """Add the rows of a `kind` that the batch of `bucket` has stored, `count` of them."""
        if count:
            self._id_rows[kind][bucket] = count * _ROW_BYTES[kind]

    def before_batch(self, last_bucket: int, handed_over_before_ms: int) -> None:
        """Take over the results of steps that have ended, and start the next steps that are due.

        `last_bucket` and `handed_over_before_ms` are the bucket number and the cutoff of the batch before, which is
        committed: everything due before that cutoff is delivered for good. The batch that begins may be replayed, and
        must then find all that it reads now. Raises the error of a step that failed, which fails this batch.
        """
        if self._step is not None and self._step.done():
            ended, self._step = self._step, None
            ended.result()()
        for merge in self._merging.take_finished():
            self._adopt(merge)
        for merge in self._merging.take_sliced():
            merge.check(handed_over_before_ms)
            self._finished += 1
            self._catalog.announce(merge.replaced, merge.merged)
            self._merging.finish(merge)
        if self._unplanned:
            self._plan_merges(last_bucket)
        self._merging.go_on(last_bucket, handed_over_before_ms)
        if self._step is None and (step := self._due_step(last_bucket, handed_over_before_ms)):
            self._step = self._worker.submit(step)

    def catch_up(self, last_bucket: int, handed_over_before_ms: int, timeout_s: float) -> float:
        """Wait until merges are not far behind, at the longest for `timeout_s` seconds, and return the seconds waited.

        A batch that takes a flood in can seal faster than one thread merges. Then it must slow down, since each bucket
        costs every window a chunk. For the other arguments, and what it raises, see `before_batch`.
        """
        if not self._far_behind():
            return 0.0
        begun = time.monotonic()
        while (left_s := begun + timeout_s - time.monotonic()) > 0 and not self._woken.is_set():
            self._merging.wait(min(left_s, _LOOK_EVERY_S))
            self.before_batch(last_bucket, handed_over_before_ms)
            if not (self._merging.busy and self._far_behind()):
                break
        return time.monotonic() - begun

    def wake(self) -> None:
        """Let `catch_up` return at once, now and from now on. Any thread may call it."""
        self._woken.set()

    def _far_behind(self) -> bool:
        buckets = self._catalog.buckets
        if len(buckets) <= most_behind(0, self._fan_in):
            # At once, as nearly always: there may be a million segments.
            return False
        stored = sum(segment.bytes for segments in buckets.values() for segment in segments)
        return len(buckets) > most_behind(stored, self._fan_in)

    @property
    def busy(self) -> bool:
        """Whether something is running, or has ended and is not taken over yet."""
        return self._step is not None or self._merging.busy

    @property
    def merges(self) -> Merges:
        """The merges since the start."""
        return Merges(len(self._merges), self._finished, self._merging.worked_s, self._last)

    def wait(self, timeout_s: float) -> None:
        """Wait until what is running has ended, at the longest for `timeout_s` seconds."""
        if self._step is not None:
            wait([self._step], timeout_s)
        self._merging.wait(timeout_s)

    def close(self) -> None:
        """Let the running steps end, and start no more."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._merging.close()

    def _set_pool(self) -> None:
        self._store.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

    def _add_parts(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            last_ms = max(self._parts.get(segment.part, 0), segment.max_deliver_at_ms)
            self._parts[segment.part] = last_ms

    def _due_step(self, last_bucket: int, handed_over_before_ms: int) -> Callable[[], _Outcome] | None:
        """Return the step that is due next, other than of a merge, if there is one."""
        now = self._now()
        if self._leftovers.due(now):
            self._leftovers.vacuumed(now)
            return self._vacuum
        if now >= self._next_delete and (delivered := self._delivered(handed_over_before_ms)):
            self._next_delete = now + _DELETE_EVERY_S
            return lambda: self._clean(delivered)
        if now >= self._next_log:
            self._next_log = now + _CLEAN_LOG_EVERY_S
            return self._clean_log
        forget_before_ms = handed_over_before_ms - _IDS_KEPT_MS
        cancelled = sorted(number for number in self._id_rows[IdRows.CANCELLED] if number <= last_bucket)
        if now >= self._next_forget and cancelled:
            self._next_forget = now + _FORGET_EVERY_S / len(cancelled)
            self._forgot = next((number for number in cancelled if number > self._forgot), cancelled[0])
            return partial(self._join, IdRows.CANCELLED, [self._forgot], forget_before_ms)
        # The kind with the most partitions first: joins of the other may not keep it waiting.
        for kind, sizes in sorted(self._id_rows.items(), key=lambda each: -len(each[1])):
            committed = {number: size for number, size in sizes.items() if number <= last_bucket}
            if joined := choose(committed, self._fan_in):
                return partial(self._join, kind, joined, forget_before_ms)
        return None

    def _vacuum(self) -> _Outcome:
        self._store.vacuum()
        return lambda: None

    def _clean_log(self) -> _Outcome:
        self._store.clean_log()
        return lambda: None

    def _delivered(self, handed_over_before_ms: int) -> set[str]:
        """Return the Delta partitions that nothing needs any more, and forget their parts."""
        # A merge removes what it replaces when it is finished. Until then its slices read that: in Delta, what a commit
        # has read and another one has deleted meanwhile is a conflict, and fails it.
        merging = {segment.part for merge in self._merges for segment in merge.replaced}
        gone = [
            part for part, last_ms in self._parts.items() if last_ms < handed_over_before_ms and part not in merging
        ]
        for part in gone:
            del self._parts[part]
        partitions = {chunks_of(part) for part in gone} | {metadata_of(part) for part in gone} | self._abandoned
        self._abandoned = set()
        # The marker of a merged bucket goes with the last of its parts.
        partitions |= set(filter(None, map(marker_of, gone))) - set(map(marker_of, self._parts))
        return partitions

    def _clean(self, partitions: set[str]) -> _Outcome:
        log.info("deleting %d delivered partitions", len(partitions))
        failpoint("cleaning")
        self._store.delete(partitions)
        # At the end of the step: until then the files were in use.
        return lambda: self._leftovers.left(self._now())

    def _join(self, kind: IdRows, buckets: list[int], forget_before_ms: int) -> _Outcome:
        log.info("joining %d partitions of %s ids", len(buckets), kind.name.lower())
        if kind is IdRows.CANCELLED:
            self._store.join_cancelled(buckets, self._forgettable(forget_before_ms))
        else:
            self._store.join_names(buckets, forget_before_ms)
        sizes = self._store.id_partitions(kind)

        def adopt() -> None:
            newer = {number: size for number, size in self._id_rows[kind].items() if number > buckets[-1]}
            self._id_rows[kind] = sizes | newer
            self._leftovers.left(self._now())

        return adopt

    def _plan_merges(self, last_bucket: int) -> None:
        """Begin the merges that are due. Buckets later than `last_bucket` may be sealed again by a replay."""
        all_buckets = self._catalog.buckets
        self._unplanned = any(number > last_bucket for number in all_buckets)
        merging = {number for merge in self._merges for number in merge.buckets}
        buckets = {number: list(segments) for number, segments in all_buckets.items() if number <= last_bucket}
        for stretch in _stretches(buckets, merging):
            sizes = {number: sum(segment.bytes for segment in buckets[number]) for number in stretch}
            if chosen := choose(sizes, self._fan_in):
                self._begin(chosen, buckets)

    def _begin(self, numbers: list[int], buckets: dict[int, list[Segment]]) -> None:
        name = MergeName(min(numbers), max(numbers), self._token)
        merge = Merge(name, {number: buckets[number] for number in numbers})
        self._merges.append(merge)
        self._merging.begin(merge)

    def _adopt(self, merge: Merge) -> None:
        """Take over a finished merge."""
        self._merges.remove(merge)
        took_ms = int((time.monotonic() - merge.begun_s) * 1000)
        self._last = LastMerge(time.time_ns() // 1_000_000, took_ms, len(merge.buckets))
        for segment in merge.replaced:
            self._parts.pop(segment.part, None)
        if not merge.merged:
            # All was delivered or cancelled meanwhile: no part takes the marker with it.
            self._abandoned.add(merge.name.live)
        self._add_parts(merge.merged)
        self._catalog.replace(merge.buckets, merge.merged)
        self._unplanned = True
        self._leftovers.left(self._now())


def _stretches(buckets: Iterable[int], merging: set[int]) -> Iterator[list[int]]:
    """Yield the runs of adjacent buckets that no merge has."""
    for taken, numbers in groupby(sorted(buckets), key=merging.__contains__):
        if not taken:
            yield list(numbers)


class _Leftovers:
    """Knows when a vacuum would find files that the table has not named for its retention time.

    All instants are in seconds.
    """

    def __init__(self, now: float) -> None:
        self._newest = now
        self._due: float | None = now + _FIRST_VACUUM_S

    def left(self, now: float) -> None:
        """Record that files were in use until `now`, and are left over since."""
        self._newest = now
        if self._due is None:
            self._due = now + _KEPT_S

    def due(self, now: float) -> bool:
        """Return whether a vacuum is due."""
        return self._due is not None and now >= self._due

    def vacuumed(self, now: float) -> None:
        """Record a vacuum. Another is due if some files are still too young for this one."""
        self._due = now + _KEPT_S if self._newest > now - _KEPT_S else None
