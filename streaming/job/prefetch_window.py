"""The due window: of the sealed buckets, the messages that fall due next, loaded ahead of need.

The driver holds metadata only. A *piece* is a range of deliver_at that has been read from the buckets, put in
order, and cached in Spark as chunks; each sealed message is in at most one piece.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import Segment
from state.buckets.window import WINDOW_SCHEMA, window_rows
from state.order import ORDER
from streaming.spark.session import worker_pool
from streaming.storage.unreadable_bucket import unreadable_bucket

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Piece:
    """The sealed messages due in [start_ms, end_ms), cached."""

    start_ms: int
    end_ms: int
    chunks: DataFrame


class PrefetchWindow:
    """Loads ahead up to `ahead_ms` past the cutoff, at most about `max_messages` in one piece.

    Where more than that is due within a quarter of `ahead_ms`, several pieces are loaded; Spark puts on disk what its
    memory does not hold. Used by one thread, the query's; loading ahead runs in a thread of its own. `start_ms` is the
    cutoff up to which everything has been delivered, but for the `overdue` segments.
    """

    def __init__(
        self,
        store: BucketTable,
        catalog: SegmentCatalog,
        start_ms: int,
        overdue: list[Segment],
        ahead_ms: int,
        max_messages: int,
        shards: int,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._shards = shards
        self._ahead_ms = ahead_ms
        self._max_messages = max_messages
        self._pieces: list[_Piece] = []
        # Loads that are under way, each with the earliest instant that it brings.
        self._loading: list[tuple[int, Future[_Piece]]] = []
        self._horizon_ms = start_ms
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="due-window")
        self._start_loading(overdue, 0, start_ms, {segment.bucket for segment in overdue})

    def take(self, start_ms: int, end_ms: int) -> list[DataFrame]:
        """Return the chunks with sealed messages due in [start_ms, end_ms), as none or more DataFrames.

        Their columns are `window.WINDOW_SCHEMA`; a chunk may reach beyond the range. Waits for what is being
        loaded only if some of it is due by then.
        """
        if end_ms > self._horizon_ms:
            self._load_on(end_ms)
        for from_ms, load in list(self._loading):
            if from_ms < end_ms or load.done():
                self._pieces.append(load.result())
                self._loading.remove((from_ms, load))
        return [
            piece.chunks.where(f"max_deliver_at_ms >= {start_ms} AND deliver_at_ms < {end_ms}")
            for piece in self._pieces
            if piece.start_ms < end_ms and piece.end_ms > start_ms
        ]

    def add(self, sealed: Iterable[Segment]) -> None:
        """Take in newly sealed segments; the part of them that is below the horizon must be loaded as well."""
        fresh = self._catalog.add(sealed)
        below = [segment for segment in fresh if segment.min_deliver_at_ms < self._horizon_ms]
        if below:
            start = min(segment.min_deliver_at_ms for segment in below)
            # Of these buckets alone: all others are loaded up to the horizon already.
            self._start_loading(below, start, self._horizon_ms, {segment.bucket for segment in below})

    def advance(self, cutoff_ms: int) -> None:
        """Let go what is delivered below `cutoff_ms`, and start to load what comes next."""
        for piece in [piece for piece in self._pieces if piece.end_ms <= cutoff_ms]:
            piece.chunks.unpersist()
            self._pieces.remove(piece)
        self._catalog.forget_before(cutoff_ms)
        start, end = self._horizon_ms, self._reach(cutoff_ms)
        # In steps of half a window: a load costs a job, however few its messages.
        if end - start >= self._ahead_ms // 2 or (end > start and start - cutoff_ms < self._ahead_ms // 4):
            self._load_on(end)

    def close(self) -> None:
        """Stop loading."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _reach(self, cutoff_ms: int) -> int:
        """Return how far the window may reach, by the number of messages that the metadata promises."""
        start, end = self._horizon_ms, cutoff_ms + self._ahead_ms
        expected = 0.0
        for segment in self._catalog.overlapping(start, end):
            span = segment.max_deliver_at_ms - segment.min_deliver_at_ms + 1
            inside = min(end, segment.max_deliver_at_ms + 1) - max(start, segment.min_deliver_at_ms)
            expected += segment.count * inside / span
        if expected > self._max_messages:
            end = max(start + 1000, start + int((end - start) * self._max_messages / expected))
        return end

    def _load_on(self, end_ms: int) -> None:
        """Load what lies between the horizon and `end_ms`, which becomes the horizon."""
        self._start_loading(self._catalog.overlapping(self._horizon_ms, end_ms), self._horizon_ms, end_ms)
        self._horizon_ms = end_ms

    def _start_loading(
        self, segments: list[Segment], start_ms: int, end_ms: int, buckets: set[int] | None = None
    ) -> None:
        """Load from `segments`, chosen here in the query's thread, and from the table as it is now.

        What is sealed later comes in by `add`; what is merged meanwhile is read from where it lay.
        """
        if segments:
            partitions = {segment.time_partition for segment in segments}
            chunks = self._store.chunks(start_ms, end_ms, partitions, buckets, self._store.version())
            load = inheritable_thread_target(self._store.spark)(self._load)
            self._loading.append((start_ms, self._loader.submit(load, chunks, segments, start_ms, end_ms)))

    def _load(self, chunks: DataFrame, segments: list[Segment], start_ms: int, end_ms: int) -> _Piece:
        """Read and cache. Raises BucketUnreadable, which names the file and what waits in it, if one is damaged."""
        in_window = window_rows(start_ms, end_ms, self._shards)
        with worker_pool(self._store.spark):
            ordered = chunks.sortWithinPartitions(*ORDER)
            loaded = ordered.mapInArrow(in_window, from_arrow_schema(WINDOW_SCHEMA)).persist()
        try:
            count = loaded.selectExpr("coalesce(sum(count), 0)").collect()[0][0]
        except (Py4JJavaError, PySparkException) as problem:
            if error := unreadable_bucket(self._store, segments, problem):
                # Without its cause: Spark puts every line of it into the failure of the query.
                raise error from None
            raise
        log.info("loaded %d sealed messages due in [%d, %d)", count, start_ms, end_ms)
        return _Piece(start_ms, end_ms, loaded)
