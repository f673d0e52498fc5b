"""The prefetch window: the sealed messages that fall due next, loaded ahead of need.

The driver holds only metadata. A *piece* has the sealed messages of a range of due time: read from the buckets, sorted,
and cached in Spark as chunks. Each sealed message is in at most one piece.

The *horizon* is the due time up to which everything is loaded or being loaded. It goes back only if much is sealed into
a loaded range, or if a range was loaded long ago. Then messages too far ahead are given up, and loaded again later.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from conf.instants import instant_and_ms
from sinks.buckets.bucket_table import BucketTable
from state.buckets.reach import Reach, due_in
from state.buckets.segments import Segment
from state.message_ids import Ids
from streaming.job.sealed.loaded_cancels import LoadedCancels
from streaming.job.sealed.piece import FAR, NEAR, Load, Piece, Wanted, load_piece
from streaming.maintenance.failures import LOAD, Failures

log = logging.getLogger(__name__)

# Each piece is a plan in the driver's Java, with which Spark compares each other plan. Small seals into a range that is
# loaded for days would make thousands.
_MOST_PIECES = 64
# If Spark loses cached messages, as with an executor, it reads them again from the files of the version that they were
# loaded from. The table keeps files that a merge has replaced for an hour (`sinks.buckets.delta_store`). So messages
# that were loaded half an hour ago are given up, except those due in a quarter of an hour: they are delivered by then.
_FRESH_S = 1_800.0
_DUE_SOON_MS = 900_000


class PrefetchWindow:
    """Loads sealed messages as far past the cutoff as `reach` says, and keeps about `reach.max_bytes` of them.

    Messages due within the next seconds are loaded in any case, and Spark spills to disk if they do not fit into its
    memory. If few messages are due, the window loads further ahead. Only the query's thread may use the window. Loads
    run in another thread. Pieces, loads, cancels and the horizon are in one class, since each step moves all of them.
    """

    def __init__(
        self,
        store: BucketTable,
        reach: Reach,
        start_ms: int,
        overdue: list[Segment],
        shards: int,
        failures: Failures | None = None,
        most_pieces: int = _MOST_PIECES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to load the overdue messages.

        Args:
            store: the table of sealed buckets.
            reach: how far to load, by the metadata of the live segments. `add` and `advance` update its catalog.
            start_ms: the cutoff below which everything is staged, except the messages of `overdue` (epoch ms).
            overdue: the segments with messages below `start_ms` that the first batch must deliver.
            shards: the present number of shards.
            failures: the work that is set aside after failures, if others share it.
            most_pieces: how many pieces there may be.
            now: a monotonic clock that returns seconds.
        """
        self._store = store
        self._most_pieces = most_pieces
        self._now = now
        self._overdue_repeats = any(segment.repeats for segment in overdue)
        self._shards = shards
        self._failures = failures or Failures(store.path, now)
        self._reach = reach
        self._pieces: list[Piece] = []
        self._loading: list[Load] = []
        self._horizon_ms = start_ms
        self._cutoff_ms = start_ms
        # Up to here the next batch takes messages.
        self._next_ms = start_ms
        self._cancelled = LoadedCancels()
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._start_loading(overdue, 0, start_ms, {segment.bucket for segment in overdue})

    @property
    def may_repeat(self) -> bool:
        """Whether any message that waits in the table repeats. It counts staged messages of live segments too."""
        return self._reach.catalog.may_repeat or self._overdue_repeats

    def next_cutoff(self, cutoff_ms: int, wanted_ms: int) -> int:
        """Return the cutoff of the batch that follows one with the cutoff `cutoff_ms`, and start to load up to there.

        That is `wanted_ms`, or less if more is due before it than one piece holds, as after an outage. Then several
        batches stage the messages, and each of them accepts new ones.
        """
        self._next_ms = max(cutoff_ms, wanted_ms)
        # Loaded messages are already bounded.
        if self._next_ms > self._horizon_ms:
            self._next_ms = self._reach.step(cutoff_ms, self._next_ms)
        if self._next_ms > self._horizon_ms:
            self._load_on(self._next_ms)
        return self._next_ms

    def take(self, start_ms: int, end_ms: int) -> list[DataFrame]:
        """Return the chunks with sealed messages due in [start_ms, end_ms), as zero or more DataFrames.

        Their columns are `window.WINDOW_SCHEMA`, and `until_ms`: a chunk may also hold messages outside the range. Only
        its messages due in [start_ms, until_ms) count. Waits for a running load only if its range begins before
        `end_ms`.
        """
        # The messages of this batch are not given up while it runs.
        self._cutoff_ms = end_ms
        if end_ms > self._horizon_ms:
            self._load_on(end_ms)
        while not self._collect(start_ms, end_ms):
            self._load_on(end_ms)
        return [
            piece.chunks_in(start_ms, until_ms)
            for piece, until_ms in self._until(end_ms)
            if until_ms > start_ms and piece.may_hold(start_ms, until_ms)
        ]

    def take_repeating(self, start_ms: int, end_ms: int) -> list[DataFrame]:
        """Return the chunks that `take` has returned for the same range, and that have messages that repeat."""
        return [
            piece.chunks_in(start_ms, until_ms).where("repeats > 0")
            for piece, until_ms in self._until(end_ms)
            if until_ms > start_ms and piece.may_repeat(start_ms, until_ms)
        ]

    def _until(self, end_ms: int) -> list[tuple[Piece, int]]:
        return [(piece, min(end_ms, piece.end_ms)) for piece in self._pieces]

    def _collect(self, start_ms: int, end_ms: int) -> bool:
        """Take over the loads that are done or needed. Return whether all messages due before `end_ms` are loaded.

        A failed load that reaches past `end_ms` is given up: a damaged file may have no message that is needed now.
        Raises the error of a failed load that reaches no further.
        """
        for load in list(self._loading):
            if load not in self._loading or (load.start_ms >= end_ms and not load.piece.done()):
                continue
            self._loading.remove(load)
            problem = load.piece.exception()
            if problem is None:
                self._pieces.append(load.piece.result().ending_at(load.end_ms))
                self._failures.remove(LOAD, load.tries)
            elif load.read_to_ms <= end_ms or not isinstance(problem, Exception):
                raise problem
            else:
                start, end = instant_and_ms(load.start_ms), instant_and_ms(load.read_to_ms)
                what = f"the load of messages due from {start} to {end}"
                self._failures.add(LOAD, [load.reach], what, problem)
                self._give_up_from(max(start_ms, load.start_ms))
        return self._horizon_ms >= end_ms

    def cancel(self, cancelled: pa.Table) -> None:
        """Take `cancelled` messages (`CANCELLED_SCHEMA`) out of the loaded ones. Later loads find them in the table."""
        self._cancelled.add(cancelled, self._horizon_ms)

    def cancelled(self, start_ms: int, end_ms: int) -> Ids:
        """Return the messages that were cancelled after they were loaded, and may be due in [start_ms, end_ms)."""
        return self._cancelled.due_between(start_ms, end_ms)

    def add(self, sealed: Iterable[Segment]) -> None:
        """Add newly sealed segments to the catalog, and load the part of them that is below the horizon."""
        new = self._reach.catalog.add(sealed)
        if new:
            self._retreat()
        below = [segment for segment in new if segment.min_deliver_at_ms < self._horizon_ms]
        if below:
            start = min(segment.min_deliver_at_ms for segment in below)
            # Only from these buckets: all others are loaded up to the horizon already.
            self._start_loading(below, start, self._horizon_ms, {segment.bucket for segment in below})

    def advance(self, cutoff_ms: int) -> None:
        """Release the pieces below `cutoff_ms`, which are staged, and start to load the next ones."""
        self._cutoff_ms = cutoff_ms
        # The first batch has staged the overdue messages.
        self._overdue_repeats = False
        # The range of a piece may reach days past its last message.
        for piece in [piece for piece in self._pieces if not piece.may_hold(cutoff_ms, piece.end_ms)]:
            piece.chunks.unpersist()
            self._pieces.remove(piece)
        self._reach.catalog.forget_before(cutoff_ms)
        # The previous batch has stored the cancelled ids, so later loads leave these messages out.
        pieces, loads = ((each.version_s for each in several) for several in (self._pieces, self._loading))
        self._cancelled.forget_before(cutoff_ms, min([*pieces, *loads], default=math.inf))
        old_s, soon_ms = self._now() - _FRESH_S, cutoff_ms + min(self._reach.ahead_ms, _DUE_SOON_MS)
        if any(piece.version_s < old_s and piece.end_ms > soon_ms for piece in self._pieces):
            self._give_up_from(soon_ms)
        self._load_ahead(cutoff_ms)

    def _load_ahead(self, cutoff_ms: int) -> None:
        """Start to load the next messages, if less than half a window is loaded. Reach less far after a failure."""
        loaded_ms = self._horizon_ms - cutoff_ms
        if loaded_ms >= self._reach.ahead_ms // 2 or not self._failures.is_over(LOAD, [NEAR]):
            return
        held = sum(piece.nbytes for piece in self._pieces) + sum(load.nbytes for load in self._loading)
        end = self._reach.onward(self._horizon_ms, cutoff_ms, held)
        if not self._failures.is_over(LOAD, [FAR]):
            end = max(self._horizon_ms, min(end, cutoff_ms + self._reach.ahead_ms))
        # In steps of half a window: each load costs a Spark job, however few its messages are.
        step_ms = end - self._horizon_ms
        if step_ms >= self._reach.ahead_ms // 2 or (step_ms and loaded_ms < self._reach.ahead_ms // 4):
            self._load_on(end, is_onward=True)
        elif step_ms:
            return
        # Forget a failure if nothing is left to load so far ahead.
        self._failures.keep(LOAD, [NEAR, FAR], set().union(*(load.tries for load in self._loading)))

    def close(self) -> None:
        """Stop loading."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _retreat(self) -> None:
        """Give up the far part of the loaded messages, if it is not needed yet.

        It is given up if much was sealed into it, or a little many times. One load will take all of that together.
        """
        end = self._reach.back(self._horizon_ms, self._cutoff_ms)
        if len(self._pieces) + len(self._loading) >= self._most_pieces:
            end = min(end, self._cutoff_ms + self._reach.ahead_ms)
        end = max(end, self._next_ms)
        if end < self._horizon_ms:
            self._give_up_from(end)

    def _give_up_from(self, end: int) -> None:
        """Give up the loaded messages due at `end` (epoch ms) or later. They will be loaded again in time."""
        self._horizon_ms = end
        self._cancelled.forget_from(end)
        for load in list(self._loading):
            load.end_ms = min(load.end_ms, end)
            if load.start_ms >= end:
                self._loading.remove(load)
                load.piece.add_done_callback(_release)
        for piece in self._pieces:
            if piece.start_ms >= end:
                piece.chunks.unpersist()
        self._pieces = [piece.ending_at(end) for piece in self._pieces if piece.start_ms < end]

    def _load_on(self, end_ms: int, is_onward: bool = False) -> None:
        """Start to load the messages from the horizon up to `end_ms`, and move the horizon there."""
        segments = self._reach.catalog.overlapping(self._horizon_ms, end_ms)
        self._start_loading(segments, self._horizon_ms, end_ms, is_onward=is_onward)
        self._horizon_ms = end_ms

    def _start_loading(
        self,
        segments: list[Segment],
        start_ms: int,
        end_ms: int,
        buckets: set[int] | None = None,
        is_onward: bool = False,
    ) -> None:
        """Start to load the messages of `segments` that are due in [start_ms, end_ms).

        The query's thread chooses the segments and the version of the table. So the load reads files that a merge has
        replaced meanwhile, and `add` loads the messages that are sealed meanwhile.
        """
        if segments:
            parts = self._reach.catalog.parts_of(segments)
            version, version_s = self._store.version(), self._now()
            chunks = self._store.chunks(start_ms, end_ms, parts, buckets, version)
            _, nbytes = due_in(segments, start_ms, end_ms)
            least = sum(
                segment.count
                for segment in self._reach.catalog.unannounced(segments)
                if start_ms <= segment.min_deliver_at_ms and segment.max_deliver_at_ms < end_ms
            )
            wanted = Wanted(segments, start_ms, end_ms, least, nbytes, version, version_s, self._shards)
            load = inheritable_thread_target(self._store.spark)(load_piece)
            piece = self._loader.submit(load, self._store, chunks, wanted)
            reach = NEAR if end_ms <= self._cutoff_ms + self._reach.ahead_ms else FAR
            self._loading.append(Load(start_ms, end_ms, end_ms, nbytes, version_s, reach, is_onward, piece))


def _release(load: Future[Piece]) -> None:
    # A failed load is tried again later, and then fails the batch.
    if not load.cancelled() and load.exception() is None:
        load.result().chunks.unpersist()
