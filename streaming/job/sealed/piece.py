"""A piece of the prefetch window: the sealed messages of a range of due time, read from the buckets and cached."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.instants import instant_and_ms
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from sinks.buckets.chunk_plans import in_slices
from sinks.buckets.task_counts import StepCount
from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.merge import slices
from state.buckets.segments import Segment
from state.buckets.window import WINDOW_SCHEMA, window_rows
from state.order import ORDER
from streaming.spark.pools import LOADS, use_pool
from streaming.storage.unreadable_bucket import unreadable_bucket

log = logging.getLogger(__name__)

_WINDOW = from_arrow_schema(WINDOW_SCHEMA)
# Loads ahead of need: beyond the window's `ahead_ms`, where few messages are due, and up to there.
FAR, NEAR = "far", "near"


@dataclass(frozen=True)
class Piece:
    """Cached sealed messages that are due in [start_ms, end_ms).

    `version_s` is when the table had the version that they were read from, by the monotonic clock.
    `firsts` and `lasts` are the bounds of its chunks by due time, epoch ms, and `repeats` says how many of the messages
    of each repeat. `nbytes` is about the size of the whole piece, even if `end_ms` was moved back.
    """

    start_ms: int
    end_ms: int
    nbytes: float
    version_s: float
    chunks: DataFrame
    firsts: np.ndarray
    lasts: np.ndarray
    repeats: np.ndarray

    def may_hold(self, start_ms: int, end_ms: int) -> bool:
        """Return whether a chunk may hold a message due in [start_ms, end_ms)."""
        return start_ms < end_ms and bool(np.any((self.firsts < end_ms) & (self.lasts >= start_ms)))

    def may_repeat(self, start_ms: int, end_ms: int) -> bool:
        """Return whether a chunk that may hold a message due in [start_ms, end_ms) has any that repeat."""
        return bool(np.any((self.firsts < end_ms) & (self.lasts >= start_ms) & (self.repeats > 0)))

    def chunks_in(self, start_ms: int, until_ms: int) -> DataFrame:
        """Return the chunks that may hold a message due in [start_ms, until_ms), with the column `until_ms`."""
        chunks = self.chunks.where(f"max_deliver_at_ms >= {start_ms} AND deliver_at_ms < {until_ms}")
        return chunks.selectExpr("*", f"{until_ms}L AS until_ms")

    def ending_at(self, end_ms: int) -> Piece:
        """Return the part of the piece that is due before `end_ms`."""
        return replace(self, end_ms=min(self.end_ms, end_ms))


@dataclass(frozen=True)
class Wanted:
    """The content of a piece to load: the messages of `segments` that are due in [start_ms, end_ms).

    - `least`: their least number, by the metadata
    - `nbytes`: about how many bytes they take
    - `version`, `version_s`: the version of the table, and when it had that (monotonic)
    - `shards`: the present number of shards
    """

    segments: list[Segment]
    start_ms: int
    end_ms: int
    least: int
    nbytes: float
    version: int
    version_s: float
    shards: int


@dataclass
class Load:
    """A running load of messages due in [start_ms, read_to_ms). Only those due before `end_ms` will be used.

    `nbytes` is about the size of all of them, and `version_s` is as in `Piece`. `reach` is the reach that is set aside
    if the load fails: `FAR` or `NEAR`. `is_onward` says whether it was begun ahead of need, and for all buckets.
    """

    start_ms: int
    read_to_ms: int
    end_ms: int
    nbytes: float
    version_s: float
    reach: str
    is_onward: bool
    piece: Future[Piece]

    @property
    def tries(self) -> set[str]:
        """The reaches that it tries again if they were set aside: a far load also loads the near messages."""
        return {self.reach, NEAR} if self.is_onward else set()


def load_piece(store: BucketTable, chunks: DataFrame, wanted: Wanted) -> Piece:
    """Read `chunks`, of the table at the wanted version, and cache their messages.

    Raises BucketUnreadable if a file is damaged, naming the file and the messages that wait in it. Raises it too if
    there are fewer than `least` messages, counting those that it leaves out as cancelled.
    """
    use_pool(store.spark, LOADS)
    first_bucket = min(segment.bucket for segment in wanted.segments)
    cancelled = store.cancelled_chunks(wanted.start_ms, wanted.end_ms, first_bucket, ALL_BUCKETS, wanted.version)
    left_out = store.step_count()
    if cancelled is None:
        in_window = window_rows(wanted.start_ms, wanted.end_ms, wanted.shards)
        loaded = chunks.sortWithinPartitions(*ORDER).mapInArrow(in_window, _WINDOW).persist()
    else:
        # The ids meet the messages of their due times: one task for each slice.
        leave_out = CancelledFilter(ALL_BUCKETS, left_out)
        in_slice = partial(window_rows, shards=wanted.shards, cancelled=leave_out)
        ranges = slices(wanted.segments, wanted.start_ms, wanted.end_ms)
        loaded = in_slices(chunks, cancelled, ranges, in_slice, _WINDOW).persist()
    try:
        return _piece_of(store, loaded, wanted, left_out)
    except BaseException:
        loaded.unpersist()
        raise


def _piece_of(store: BucketTable, loaded: DataFrame, wanted: Wanted, left_out: StepCount) -> Piece:
    """Let Spark cache the rows of `loaded`, and check them."""
    try:
        rows = loaded.select("deliver_at_ms", "max_deliver_at_ms", "count", "repeats").collect()
    except (Py4JJavaError, PySparkException) as problem:
        if error := unreadable_bucket(store, wanted.segments, problem):
            # Without its cause: Spark would copy every line of that into the query's error.
            raise error from None
        raise
    count = sum(row["count"] for row in rows)
    if count < wanted.least - left_out.take():
        raise BucketUnreadable(
            f"{store.path} has {count} messages due in [{wanted.start_ms}, {wanted.end_ms}), but its metadata "
            f"says at least {wanted.least}"
        )
    start, end = instant_and_ms(wanted.start_ms), instant_and_ms(wanted.end_ms)
    log.info("loaded %d sealed messages due from %s to %s", count, start, end)
    columns = np.array(
        [(row["deliver_at_ms"], row["max_deliver_at_ms"], row["repeats"]) for row in rows], dtype=np.int64
    )
    return Piece(wanted.start_ms, wanted.end_ms, wanted.nbytes, wanted.version_s, loaded, *columns.reshape(-1, 3).T)
