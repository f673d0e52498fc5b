"""Upkeep of the sealed buckets, beside the batches: delivered time partitions go, then their metadata and files."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from sinks.bucket_store import BucketStore
from state.segments import partition_end_ms

log = logging.getLogger(__name__)

_DELETE_EVERY_S = 60.0
_VACUUM_EVERY_S = 3600.0
# Each bucket brings a metadata file for each shard, and a start reads them all.
_COMPACT_EVERY_BUCKETS = 50


class Upkeep:
    """Deletes time partitions that are delivered whole, and keeps the metadata in few files.

    Runs in a thread of its own, never twice at a time.
    """

    def __init__(self, store: BucketStore, partitions: set[str]) -> None:
        """`partitions` are the labels of the time partitions that the table holds."""
        self._store = store
        self._partitions = partitions
        self._running: Future[None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="upkeep")
        self._next_delete = self._next_vacuum = time.monotonic()
        self._uncompacted = 0

    def sealed_into(self, partitions: set[str]) -> None:
        """Remember the time partitions that a new bucket lies in; none if nothing was sealed."""
        self._partitions |= partitions
        self._uncompacted += bool(partitions)

    def after_batch(self, last_bucket: int, delivered_before_ms: int) -> None:
        """Start what is due of the upkeep; everything below `delivered_before_ms` is delivered for good.

        That is the cutoff of the batch before, and `last_bucket` the number of its bucket: the running one may still
        be replayed, and would read again. An upkeep that failed fails the batch that finds out.
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
            self._uncompacted = 0
            self._running = self._worker.submit(self._clean, done, vacuum, last_bucket)
        elif self._uncompacted >= _COMPACT_EVERY_BUCKETS:
            self._uncompacted = 0
            self._running = self._worker.submit(self._store.compact_metadata, last_bucket)

    def close(self) -> None:
        """Let a running upkeep end, and start no more."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _clean(self, partitions: set[str], vacuum: bool, last_bucket: int) -> None:
        log.info("deleting %d delivered time partitions", len(partitions))
        self._store.delete(partitions)
        self._store.compact_metadata(last_bucket, partitions)
        if vacuum:
            self._store.vacuum()
