"""The schedule of maintenance: which step runs beside the batches, and when."""

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
# The table's retention time, which counts by the wall clock, and a minute for the difference between clocks.
_KEPT_S = 3660.0
# An earlier run may have left files. Not at once, since a start has other things to do.
_FIRST_VACUUM_S = 300.0
# Each bucket adds a metadata file for each shard, and a start reads them all.
_COMPACT_EVERY_BUCKETS = 50
# The scheduler pool in Spark. FAIR pools have equal weights by default: maintenance may take half of the cores.
_POOL = "maintenance"


class Maintenance:
    """Deletes time partitions that are delivered whole, merges buckets, keeps the metadata in few files, and vacuums.

    One step runs at a time, in another thread. Only the query's thread uses the catalog.
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
        """Start the thread in which the steps run.

        Args:
            store: the table of sealed buckets.
            catalog: the metadata of the live segments; a merge replaces segments in it.
            partitions: the labels of the time partitions that the table has.
            bucket_limit: how many buckets may wait before some are merged.
            batch_settings: how a merge cuts segments.
            now: a clock that returns seconds.
        """
        self._store = store
        self._catalog = catalog
        self._partitions = partitions
        self._bucket_limit = bucket_limit
        self._batch_settings = batch_settings
        self._running: Future[Merged | None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="maintenance", initializer=self._set_pool)
        self._now = now
        self._next_delete = now()
        self._leftovers = _Leftovers(now())
        self._uncompacted = 0
        self._compacted_to = -1

    def sealed_into(self, partitions: set[str]) -> None:
        """Add the time partitions of a new bucket; `partitions` is empty if nothing was sealed."""
        self._partitions |= partitions
        self._uncompacted += bool(partitions)

    def before_batch(self, last_bucket: int, delivered_before_ms: int) -> None:
        """Take over the result of a step that has ended, and start the next step that is due.

        `last_bucket` and `delivered_before_ms` are the bucket number and the cutoff of the batch before, which is
        committed: everything due before that cutoff is delivered for good. The batch that begins may be replayed, and
        must then find all that it reads now. Raises the error of a step that failed, which fails this batch.
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
        """Let a running step end, and start no more."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _set_pool(self) -> None:
        self._store.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

    def _next_step(self, last_bucket: int, delivered_before_ms: int) -> Callable[[], Merged | None] | None:
        now = self._now()
        # The vacuum goes first, and by its own time: files must go even if nothing falls due and nothing is merged.
        if self._leftovers.due(now):
            self._leftovers.vacuumed(now)
            return self._store.vacuum
        change = self._next_change(now, last_bucket, delivered_before_ms)
        return change and partial(self._run_change, change)

    def _run_change(self, change: Callable[[], Merged | None]) -> Merged | None:
        merged = change()
        # At the end of the change: until then the files that it has replaced were in use.
        self._leftovers.left(self._now())
        return merged

    def _next_change(
        self, now: float, last_bucket: int, delivered_before_ms: int
    ) -> Callable[[], Merged | None] | None:
        delivered = {label for label in self._partitions if partition_end_ms(label) <= delivered_before_ms}
        if now >= self._next_delete and delivered:
            self._next_delete = now + _DELETE_EVERY_S
            self._partitions -= delivered
            return self._cleaning(delivered, last_bucket)
        if self._uncompacted >= _COMPACT_EVERY_BUCKETS:
            # Only the buckets since the last time, so that the cost does not grow with the number of buckets.
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
