"""The threads that merge: one slice after the other, of the merge with the least left to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sinks.buckets.bucket_table import BucketTable
from state.buckets.merge import MergeSlice
from state.checkpoint.batch_settings import BatchSettings
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from streaming.storage.unreadable_bucket import unreadable_bucket


class FailedMerge(NamedTuple):
    """A merge of which a step failed by `problem`: its end if `at_end`, otherwise a slice."""

    merge: Merge
    problem: Exception
    at_end: bool


class Merging:
    """Merges that are under way, and the threads that work on them.

    A thread goes on from slice to slice without the query's thread, which only begins merges and has them finished:
    its batches take seconds under load, and a slice a batch is far less than a thread can merge. Small merges go first,
    since they keep the number of buckets low, and large ones can wait.
    """

    def __init__(
        self, store: BucketTable, batch_settings: BatchSettings, threads: int, initializer: Callable[[], None]
    ) -> None:
        """`initializer` is called in each of the `threads` threads when it starts."""
        self._store = store
        self._batch_settings = batch_settings
        self._threads = threads
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="merging", initializer=initializer)
        self._working: set[Future[None]] = set()
        # Guards all below.
        self._lock = threading.Lock()
        # Of the last committed batch.
        self._last_bucket, self._handed_over_before_ms = 0, 0
        # With slices left, and none of them being merged.
        self._open: list[Merge] = []
        # With all slices merged.
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

    def take_sliced(self) -> list[Merge]:
        """Return the merges whose slices are all done since the last call. Each is to be given to `finish`."""
        with self._lock:
            sliced, self._sliced = self._sliced, []
        return sliced

    def finish(self, merge: Merge) -> None:
        """Have a merge finished, after those that were given before, and before any other slice."""
        with self._lock:
            self._to_finish.append(merge)

    def take_finished(self) -> list[Merge]:
        """Return the merges that are finished since the last call."""
        for ended in [future for future in self._working if future.done()]:
            self._working.remove(ended)
            ended.result()
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def take_failed(self) -> list[FailedMerge]:
        """Return the merges of which a step failed since the last call. No thread works on them any more.

        One whose end failed may be finished in the table. It can be given to `finish` again.
        """
        with self._lock:
            failed, self._failed = self._failed, []
        return failed

    def go_on(self, last_bucket: int, handed_over_before_ms: int) -> None:
        """Let the threads work on what there is.

        `last_bucket` and `handed_over_before_ms` are the bucket number and the cutoff of the last committed batch:
        slices leave out what is cancelled up to that bucket, and what is due before that cutoff.
        """
        with self._lock:
            self._last_bucket, self._handed_over_before_ms = last_bucket, handed_over_before_ms
            work = len(self._open) + len(self._to_finish)
        idle = self._threads - sum(not future.done() for future in self._working)
        for _ in range(min(work, idle)):
            self._working.add(self._workers.submit(self._work))

    @property
    def busy(self) -> bool:
        """Whether a thread works, or has ended and is not taken over yet."""
        with self._lock:
            return bool(self._working or self._sliced or self._to_finish or self._finished or self._failed)

    @property
    def worked_s(self) -> float:
        """The time that slices and their ends have taken, of all threads, in s."""
        with self._lock:
            return self._worked_s

    def wait(self, timeout_s: float) -> None:
        """Wait until the threads find nothing more to do."""
        wait(self._working, timeout_s)

    def close(self) -> None:
        """Let the running steps end, and start no more."""
        with self._lock:
            self._closed = True
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _work(self) -> None:
        while step := self._next():
            begun_s = time.monotonic()
            step()
            with self._lock:
                self._worked_s += time.monotonic() - begun_s

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._closed:
                return None
            if self._to_finish and not self._finishing:
                self._finishing = True
                self._last_number += 1
                merge, number = self._to_finish.pop(0), self._last_number
                return lambda: self._finish(merge, number)
            while self._open:
                merge = min(self._open, key=lambda merge: merge.left)
                self._open.remove(merge)
                within = merge.next_slice(self._handed_over_before_ms)
                if within is not None:
                    last_bucket = self._last_bucket
                    return lambda: self._slice(merge, within, last_bucket)
                self._sliced.append(merge)
        return None

    def _slice(self, merge: Merge, within: MergeSlice, last_bucket: int) -> None:
        try:
            # Only what is committed for good: a replay must find the messages that its batch cancels.
            merged = merge_slice(self._store, merge, within, self._batch_settings, last_bucket)
        except Exception as problem:  # noqa: BLE001, the query's thread decides what follows
            failed = FailedMerge(merge, self._named(merge, problem), at_end=False)
            with self._lock:
                self._failed.append(failed)
            return
        with self._lock:
            merge.add(merged, within)
            self._open.append(merge)

    def _named(self, merge: Merge, problem: Exception) -> Exception:
        """Return the error that names the file and the messages in it if one that the merge reads is the cause."""
        if not isinstance(problem, (Py4JJavaError, PySparkException)):
            return problem
        try:
            return unreadable_bucket(self._store, merge.replaced, problem) or problem
        except (Py4JJavaError, PySparkException):
            # The table's log cannot be read either.
            return problem

    def _finish(self, merge: Merge, number: int) -> None:
        problem: Exception | None = None
        try:
            finish_merge(self._store, merge, number)
        except Exception as raised:  # noqa: BLE001, the query's thread decides what follows
            problem = raised
        with self._lock:
            self._finishing = False
            if problem is None:
                self._finished.append(merge)
            else:
                self._failed.append(FailedMerge(merge, problem, at_end=True))
