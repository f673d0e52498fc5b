"""Maintenance of sealed buckets, beside the batches: what is delivered goes, and small buckets become larger ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from conf.failpoints import failpoint
from sinks.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.merge import choose
from state.buckets.segments import partition_end_ms
from state.checkpoint.batch_settings import BatchSettings
from streaming.maintenance.merge import Merged, merge_buckets

log = logging.getLogger(__name__)

_DELETE_EVERY_S = 60.0
# The table's retention time, which counts by the wall clock, and a minute for what clocks differ.
_KEPT_S = 3660.0
# An earlier run may have left files, and a start has other things to do.
_FIRST_VACUUM_S = 300.0
# Each bucket brings a metadata file for each shard, and a start reads them all.
_COMPACT_EVERY_BUCKETS = 50
# Batches are served first wherever both have tasks to run.
_POOL = "upkeep"


class Maintenance:
    """Deletes time partitions that are delivered whole, merges buckets, keeps the metadata in few files, and vacuums.

    One step at a time, in a thread of its own; the catalog is touched in the query's thread alone.
    """

    def __init__(
        self,
        store: BucketTable,
        catalog: SegmentCatalog,
        partitions: set[str],
        bucket_limit: int,
        batch_settings: BatchSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`partitions` are the labels of the time partitions that the table holds; `now` counts seconds."""
        self._store = store
        self._catalog = catalog
        self._partitions = partitions
        self._bucket_limit = bucket_limit
        self._batch_settings = batch_settings
        self._running: Future[Merged | None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="upkeep", initializer=self._begin)
        self._now = now
        self._next_delete = now()
        self._leftovers = _Leftovers(now())
        self._uncompacted = 0
        self._compacted_to = -1

    def sealed_into(self, partitions: set[str]) -> None:
        """Remember the time partitions that a new bucket lies in; none if nothing was sealed."""
        self._partitions |= partitions
        self._uncompacted += bool(partitions)

    def before_batch(self, last_bucket: int, delivered_before_ms: int) -> None:
        """Start what is due of the upkeep; everything below `delivered_before_ms` is delivered for good.

        That is the cutoff of the batch before, which is committed, and `last_bucket` the number of its bucket. The
        batch that begins may be replayed, and must then find all that it reads now. An upkeep that failed fails the
        batch that finds out.
        """
        if self._running is not None:
            if not self._running.done():
                return
            if merged := self._running.result():
                self._catalog.replace(merged.buckets, merged.segments)
            self._running = None
        step = self._next_step(last_bucket, delivered_before_ms)
        if step is not None:
            self._running = self._worker.submit(step)

    def close(self) -> None:
        """Let a running upkeep end, and start no more."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _begin(self) -> None:
        self._store.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

    def _next_step(self, last_bucket: int, delivered_before_ms: int) -> Callable[[], Merged | None] | None:
        now = self._now()
        # First, and not with what leaves files: those go whether or not anything falls due, or is merged.
        if self._leftovers.due(now):
            self._leftovers.vacuumed(now)
            return self._store.vacuum
        change = self._next_change(now, last_bucket, delivered_before_ms)
        return change and partial(self._make, change)

    def _make(self, change: Callable[[], Merged | None]) -> Merged | None:
        merged = change()
        # In its own thread, at its end: what it has replaced was in use until then.
        self._leftovers.left(self._now())
        return merged

    def _next_change(
        self, now: float, last_bucket: int, delivered_before_ms: int
    ) -> Callable[[], Merged | None] | None:
        done = {label for label in self._partitions if partition_end_ms(label) <= delivered_before_ms}
        if now >= self._next_delete and done:
            self._next_delete = now + _DELETE_EVERY_S
            self._partitions -= done
            return self._cleaning(done, last_bucket)
        if self._uncompacted >= _COMPACT_EVERY_BUCKETS:
            # What came since the last time, so that the cost does not grow with what waits.
            return self._compacting(self._compacted_to + 1, last_bucket)
        return self._merging(last_bucket, delivered_before_ms)

    def _cleaning(self, partitions: set[str], last_bucket: int) -> Callable[[], None]:
        compact = self._compacting(0, last_bucket, partitions)

        def clean() -> None:
            log.info("deleting %d delivered time partitions", len(partitions))
            self._store.delete(partitions)
            failpoint("cleaning")
            compact()

        return clean

    def _compacting(self, first_bucket: int, last_bucket: int, deleted: Iterable[str] = ()) -> Callable[[], None]:
        self._uncompacted, self._compacted_to = 0, last_bucket
        buckets = sum(first_bucket <= number <= last_bucket for number in self._catalog.buckets)
        files = 1 + buckets // _COMPACT_EVERY_BUCKETS
        return lambda: self._store.compact_metadata(first_bucket, last_bucket, files, deleted)

    def _merging(self, last_bucket: int, delivered_before_ms: int) -> Callable[[], Merged] | None:
        buckets = self._catalog.buckets
        if len(buckets) <= self._bucket_limit:
            return None
        settled = {number: segments for number, segments in buckets.items() if number <= last_bucket}
        chosen = {number: list(settled[number]) for number in choose(settled, self._bucket_limit)}
        if not chosen:
            return None
        return lambda: merge_buckets(self._store, chosen, delivered_before_ms, self._batch_settings)


class _Leftovers:
    """Tells when a vacuum finds files that the table has not named for its retention time. Instants in seconds."""

    def __init__(self, now: float) -> None:
        self._newest = now
        self._due: float | None = now + _FIRST_VACUUM_S

    def left(self, now: float) -> None:
        """Remember that files were left until now."""
        self._newest = now
        if self._due is None:
            self._due = now + _KEPT_S

    def due(self, now: float) -> bool:
        return self._due is not None and now >= self._due

    def vacuumed(self, now: float) -> None:
        """Look again when what is too young for a vacuum now is old enough, if there is such."""
        self._due = now + _KEPT_S if self._newest > now - _KEPT_S else None
