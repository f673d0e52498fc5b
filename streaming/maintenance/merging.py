"""The threads that merge: one slice after the other, of the merge with the least left to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sinks.buckets.bucket_table import BucketTable
from state.checkpoint.batch_settings import BatchSettings
from streaming.maintenance.merge import Merge, MergedSlice, finish_merge, merge_slice
from streaming.maintenance.merge_queue import EndStep, MergeQueue, SliceStep
from streaming.storage.unreadable_bucket import unreadable_bucket


class Merging:
    """Threads that work on the merges of a queue.

    A thread goes on from slice to slice without the query's thread, which only begins merges and has them finished:
    its batches take seconds under load, and a slice a batch is far less than a thread can merge.
    """

    def __init__(
        self,
        store: BucketTable,
        queue: MergeQueue,
        batch_settings: BatchSettings,
        threads: int,
        initializer: Callable[[], None],
    ) -> None:
        """`initializer` is called in each of the `threads` threads when it starts."""
        self._store = store
        self._queue = queue
        self._batch_settings = batch_settings
        self._threads = threads
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="merging", initializer=initializer)
        self._working: set[Future[None]] = set()

    def go_on(self, work: int) -> None:
        """Let as many threads work as there is `work` for."""
        idle = self._threads - sum(not future.done() for future in self._working)
        for _ in range(min(work, idle)):
            self._working.add(self._workers.submit(self._work))

    def take_over(self) -> None:
        """Forget the threads that have nothing more to do. Raises what one of them has not expected."""
        for ended in [future for future in self._working if future.done()]:
            self._working.remove(ended)
            ended.result()

    @property
    def busy(self) -> bool:
        """Whether a thread works, or has ended and is not taken over yet."""
        return bool(self._working)

    def wait(self, timeout_s: float) -> None:
        """Wait until the threads find nothing more to do."""
        wait(self._working, timeout_s)

    def close(self) -> None:
        """Let the running steps end, and start no more."""
        self._queue.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _work(self) -> None:
        while step := self._queue.next():
            begun_s = time.monotonic()
            try:
                merged = self._run(step)
            except Exception as raised:  # noqa: BLE001, the query's thread decides what follows
                problem = self._named(step.merge, raised) if isinstance(step, SliceStep) else raised
                self._queue.failed(step, problem, time.monotonic() - begun_s)
            else:
                self._queue.done(step, merged, time.monotonic() - begun_s)

    def _run(self, step: SliceStep | EndStep) -> MergedSlice | None:
        """Return what a slice has become; None for an end."""
        if isinstance(step, EndStep):
            finish_merge(self._store, step.merge, step.number)
            return None
        # Only what is committed for good: a replay must find the messages that its batch cancels.
        return merge_slice(self._store, step.merge, step.within, self._batch_settings, step.last_bucket)

    def _named(self, merge: Merge, problem: Exception) -> Exception:
        """Return the error that names the file and the messages in it if one that the merge reads is the cause."""
        if not isinstance(problem, (Py4JJavaError, PySparkException)):
            return problem
        try:
            return unreadable_bucket(self._store, merge.replaced, problem) or problem
        except (Py4JJavaError, PySparkException):
            # The table's log cannot be read either.
            return problem
