"""The prefetch window: the sealed messages that fall due next, loaded ahead of need.

The driver holds only metadata. A *piece* is a range of due time whose sealed messages have been read from the buckets,
sorted, and cached in Spark as chunks. Each sealed message is in at most one piece.

The *horizon* is the due time up to which everything is loaded or being loaded. It never goes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from py4j.protocol import Py4JJavaError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from sinks.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import Segment
from state.buckets.window import WINDOW_SCHEMA, window_rows
from state.order import ORDER
from streaming.spark.session import worker_pool
from streaming.storage.unreadable_bucket import unreadable_bucket

log = logging.getLogger(__name__)


# A load reads about one chunk too much of each bucket. So it goes on, up to a day ahead, until it has so many messages
# that this does not matter.
_WORTH_A_LOAD = 50_000
_MOST_AHEAD_MS = 24 * 60 * 60 * 1000
# The scheduler pool in Spark of the loads.
_POOL = "loads"


@dataclass(frozen=True)
class _Piece:
    """Cached sealed messages that are due in [start_ms, end_ms).

    `firsts` and `lasts` are the bounds of its chunks by due time, epoch ms.
    """

    start_ms: int
    end_ms: int
    chunks: DataFrame
    firsts: np.ndarray
    lasts: np.ndarray

    def may_hold(self, start_ms: int, end_ms: int) -> bool:
        """Return whether a chunk may hold a message due in [start_ms, end_ms)."""
        return bool(np.any((self.firsts < end_ms) & (self.lasts >= start_ms)))


class PrefetchWindow:
    """Loads sealed messages up to `ahead_ms` past the cutoff, at most about `max_messages` in one piece.

    If more messages than that are due within a quarter of `ahead_ms`, it loads several pieces; Spark writes to disk
    what does not fit into its memory. If few are due, it loads further ahead. Only the query's thread may use the
    window. Loads run in another thread.
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
        """Start to load the overdue messages.

        Args:
            store: the table of sealed buckets.
            catalog: the metadata of the live segments, which `add` and `advance` update.
            start_ms: the cutoff below which everything is delivered, except what `overdue` holds (epoch ms).
            overdue: the segments with messages below `start_ms` that the first batch must deliver.
            ahead_ms: how far past the cutoff to load (ms).
            max_messages: about how many messages one piece may hold.
            shards: the present number of shards.
        """
        self._store = store
        self._catalog = catalog
        self._shards = shards
        self._ahead_ms = ahead_ms
        self._max_messages = max_messages
        self._pieces: list[_Piece] = []
        # Running loads, each with the start of its range of due time.
        self._loading: list[tuple[int, Future[_Piece]]] = []
        self._horizon_ms = start_ms
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._start_loading(overdue, 0, start_ms, {segment.bucket for segment in overdue})

    def take(self, start_ms: int, end_ms: int) -> list[DataFrame]:
        """Return the chunks with sealed messages due in [start_ms, end_ms), as zero or more DataFrames.

        Their columns are `window.WINDOW_SCHEMA`. A chunk may also hold messages outside the range. Waits for a running
        load only if its range begins before `end_ms`.
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
            if piece.may_hold(start_ms, end_ms)
        ]

    def add(self, sealed: Iterable[Segment]) -> None:
        """Add newly sealed segments to the catalog, and load the part of them that is below the horizon."""
        new = self._catalog.add(sealed)
        below = [segment for segment in new if segment.min_deliver_at_ms < self._horizon_ms]
        if below:
            start = min(segment.min_deliver_at_ms for segment in below)
            # Only from these buckets: all others are loaded up to the horizon already.
            self._start_loading(below, start, self._horizon_ms, {segment.bucket for segment in below})

    def advance(self, cutoff_ms: int) -> None:
        """Release the pieces below `cutoff_ms`, which are delivered, and start to load the next ones."""
        for piece in [piece for piece in self._pieces if piece.end_ms <= cutoff_ms]:
            piece.chunks.unpersist()
            self._pieces.remove(piece)
        self._catalog.forget_before(cutoff_ms)
        loaded_ms = self._horizon_ms - cutoff_ms
        if loaded_ms < self._ahead_ms // 2:
            end = self._reach(cutoff_ms)
            # In steps of half a window: each load costs a Spark job, however few its messages are.
            if end - self._horizon_ms >= self._ahead_ms // 2 or loaded_ms < self._ahead_ms // 4:
                self._load_on(end)

    def close(self) -> None:
        """Stop loading."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _reach(self, cutoff_ms: int) -> int:
        """Return the due time up to which the window may reach, by the message counts in the metadata."""
        start, end = self._horizon_ms, cutoff_ms + self._ahead_ms
        expected = self._expected(start, end)
        if expected > self._max_messages:
            return max(start + 1000, start + int((end - start) * self._max_messages / expected))
        while expected < _WORTH_A_LOAD and end - cutoff_ms < _MOST_AHEAD_MS:
            further = start + 2 * (end - start)
            expected = self._expected(start, further)
            if expected > max(_WORTH_A_LOAD, self._max_messages):
                break
            end = further
        return end

    def _expected(self, start_ms: int, end_ms: int) -> float:
        """Return how many messages are due in [start_ms, end_ms) if those of each segment are evenly spread."""
        expected = 0.0
        for segment in self._catalog.overlapping(start_ms, end_ms):
            span = segment.max_deliver_at_ms - segment.min_deliver_at_ms + 1
            inside = min(end_ms, segment.max_deliver_at_ms + 1) - max(start_ms, segment.min_deliver_at_ms)
            expected += segment.count * inside / span
        return expected

    def _load_on(self, end_ms: int) -> None:
        """Start to load the messages from the horizon up to `end_ms`, and move the horizon there."""
        self._start_loading(self._catalog.overlapping(self._horizon_ms, end_ms), self._horizon_ms, end_ms)
        self._horizon_ms = end_ms

    def _start_loading(
        self, segments: list[Segment], start_ms: int, end_ms: int, buckets: set[int] | None = None
    ) -> None:
        """Start to load the messages of `segments` that are due in [start_ms, end_ms).

        The query's thread chooses the segments and the version of the table. So the load reads files that a merge has
        replaced meanwhile, and `add` loads what is sealed meanwhile.
        """
        if segments:
            parts = self._catalog.parts_of(segments)
            chunks = self._store.chunks(start_ms, end_ms, parts, buckets, self._store.version())
            load = inheritable_thread_target(self._store.spark)(self._load)
            self._loading.append((start_ms, self._loader.submit(load, chunks, segments, start_ms, end_ms)))

    def _load(self, chunks: DataFrame, segments: list[Segment], start_ms: int, end_ms: int) -> _Piece:
        """Read the chunks and cache their messages.

        Raises BucketUnreadable if a file is damaged. The error names the file and the messages that wait in it.
        """
        in_window = window_rows(start_ms, end_ms, self._shards)
        self._store.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        with worker_pool(self._store.spark):
            ordered = chunks.sortWithinPartitions(*ORDER)
            loaded = ordered.mapInArrow(in_window, from_arrow_schema(WINDOW_SCHEMA)).persist()
        try:
            rows = loaded.select("deliver_at_ms", "max_deliver_at_ms", "count").collect()
        except (Py4JJavaError, PySparkException) as problem:
            if error := unreadable_bucket(self._store, segments, problem):
                # Without its cause: Spark would copy every line of that into the query's error.
                raise error from None
            raise
        count = sum(row["count"] for row in rows)
        whole = sum(
            segment.count
            for segment in segments
            if start_ms <= segment.min_deliver_at_ms and segment.max_deliver_at_ms < end_ms
        )
        if count < whole:
            raise BucketUnreadable(
                f"{self._store.path} has {count} messages due in [{start_ms}, {end_ms}), and its metadata says "
                f"{whole} or more"
            )
        log.info("loaded %d sealed messages due in [%d, %d)", count, start_ms, end_ms)
        bounds = np.array([(row["deliver_at_ms"], row["max_deliver_at_ms"]) for row in rows], dtype=np.int64)
        return _Piece(start_ms, end_ms, loaded, *bounds.reshape(-1, 2).T)
