"""The queue of merge steps and their results, which the query's thread and the merging threads share."""

from __future__ import annotations

import threading
from typing import NamedTuple

from state.buckets.merge import MergeSlice
from streaming.maintenance.merge import Merge, MergedSlice


class FailedMerge(NamedTuple):
    """A merge of which a step failed by `problem`: its end if `at_end`, otherwise a slice."""

    merge: Merge
    problem: Exception
    at_end: bool


class SliceStep(NamedTuple):
    """A slice to merge, without messages that were cancelled by batches up to the batch of `last_bucket`."""

    merge: Merge
    within: MergeSlice
    last_bucket: int


class EndStep(NamedTuple):
    """A merge to finish. `number` counts the finished merges from 1."""

    merge: Merge
    number: int


class MergeQueue:
    """The steps of merges. A merge with slices left is in the queue, or with the thread that merges one of them.

    Ends go before slices. Slices of small merges go first, since these merges keep the number of buckets low. Large
    merges can wait.
    """

    def __init__(self) -> None:
        # Guards all below.
        self._lock = threading.Lock()
        # The bucket number and the cutoff of the last committed batch.
        self._committed = (0, 0)
        # Merges with slices left, without a thread that merges one.
        self._open: list[Merge] = []
        # Merges with all slices done.
        self._sliced: list[Merge] = []
        self._to_finish: list[Merge] = []
        # One at a time, and numbered when it starts: Delta refuses or skips a finish that another one overtakes.
        self._finishing, self._last_number = False, 0
        self._finished: list[Merge] = []
        self._failed: list[FailedMerge] = []
        self._worked_s = 0.0
        self._closed = False

    def begin(self, merge: Merge) -> None:
        """Add a merge."""
        with self._lock:
            self._open.append(merge)

    def finish(self, merge: Merge) -> None:
        """Have a merge finished, after those that were given before, and before any other slice."""
        with self._lock:
            self._to_finish.append(merge)

    def take_sliced(self) -> list[Merge]:
        """Return the merges that have completed all slices since the last call. Give each to `finish`."""
        with self._lock:
            sliced, self._sliced = self._sliced, []
        return sliced

    def take_finished(self) -> list[Merge]:
        """Return the merges that are finished since the last call."""
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def take_failed(self) -> list[FailedMerge]:
        """Return the merges with a step that failed since the last call. No thread works on them any more.

        If the end of a merge failed, the merge may be finished in the table. It can be given to `finish` again.
        """
        with self._lock:
            failed, self._failed = self._failed, []
        return failed

    def go_on(self, last_bucket: int, staged_before_ms: int) -> int:
        """Take the bucket number and the cutoff of the last committed batch, and return how many merges wait.

        Slices leave out messages that are cancelled up to that bucket, and messages due before that cutoff.
        """
        with self._lock:
            self._committed = (last_bucket, staged_before_ms)
            return len(self._open) + len(self._to_finish)

    def next(self) -> SliceStep | EndStep | None:
        """Return the next step for the calling thread, or None if nothing is to be done."""
        with self._lock:
            if self._closed:
                return None
            if self._to_finish and not self._finishing:
                self._finishing = True
                self._last_number += 1
                return EndStep(self._to_finish.pop(0), self._last_number)
            last_bucket, staged_before_ms = self._committed
            while self._open:
                merge = min(self._open, key=lambda merge: merge.left)
                self._open.remove(merge)
                within = merge.next_slice(staged_before_ms)
                if within is not None:
                    return SliceStep(merge, within, last_bucket)
                self._sliced.append(merge)
        return None

    def done(self, step: SliceStep | EndStep, merged: MergedSlice | None, took_s: float) -> None:
        """Record that a step is done. `merged` is what a slice has become."""
        with self._lock:
            self._worked_s += took_s
            if isinstance(step, EndStep):
                self._finishing = False
                self._finished.append(step.merge)
            else:
                assert merged is not None
                step.merge.add(merged, step.within)
                self._open.append(step.merge)

    def failed(self, step: SliceStep | EndStep, problem: Exception, took_s: float) -> None:
        """Record that a step has failed by `problem`."""
        at_end = isinstance(step, EndStep)
        with self._lock:
            self._worked_s += took_s
            if at_end:
                self._finishing = False
            self._failed.append(FailedMerge(step.merge, problem, at_end))

    @property
    def has_results(self) -> bool:
        """Whether there is something to take, or a merge to finish."""
        with self._lock:
            return bool(self._sliced or self._to_finish or self._finished or self._failed)

    @property
    def worked_s(self) -> float:
        """The time that steps have taken, of all threads, in s."""
        with self._lock:
            return self._worked_s

    def close(self) -> None:
        """Let no further step begin."""
        with self._lock:
            self._closed = True
