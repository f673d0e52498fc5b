"""Upkeep of the sealed buckets, beside the batches: delivered time partitions go, then their files."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from sinks.bucket_store import BucketStore
from state.segments import partition_end_ms

log = logging.getLogger(__name__)

_DELETE_EVERY_S = 60.0
_VACUUM_EVERY_S = 3600.0


class Upkeep:
    """Deletes time partitions that are delivered whole. Runs in a thread of its own, never twice at a time."""

    def __init__(self, store: BucketStore, partitions: set[str]) -> None:
        """`partitions` are the labels of the time partitions that the table holds."""
        self._store = store
        self._partitions = partitions
        self._running: Future[None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="upkeep")
        self._next_delete = self._next_vacuum = time.monotonic()

    def sealed_into(self, partitions: set[str]) -> None:
        """Remember the time partitions that a new bucket lies in."""
        self._partitions |= partitions

    def after_batch(self, delivered_before_ms: int) -> None:
        """Start what is due of the upkeep; everything below `delivered_before_ms` is delivered for good.

        That is the cutoff of the batch before: the running one may still be replayed, and would read again.
        An upkeep that failed fails the batch that finds out.
        """
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
            self._running = None
        now = time.monotonic()
        done = {label for label in self._partitions if partition_end_ms(label) <= delivered_before_ms}
        if now >= self._next_delete and done:
            self._next_delete = now + _DELETE_EVERY_S
            vacuum = now >= self._next_vacuum
            if vacuum:
                self._next_vacuum = now + _VACUUM_EVERY_S
            self._partitions -= done
            self._running = self._worker.submit(self._delete, done, vacuum)

    def close(self) -> None:
        """Let a running upkeep end, and start no more."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _delete(self, partitions: set[str], vacuum: bool) -> None:
        log.info("deleting %d delivered time partitions", len(partitions))
        self._store.delete(partitions)
        if vacuum:
            self._store.vacuum()
