"""Messages that were cancelled after the prefetch window loaded them: the hand-over leaves these out."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA, NEVER_MS
from state.message_ids import Ids, ids_in


class LoadedCancels:
    """The cancelled messages that a loaded piece may still have.

    There are no more of them than loaded messages, and none that was cancelled before the oldest piece was loaded: so
    they are those of half an hour, or of a quarter more (`streaming.job.sealed.prefetch_window`).
    """

    def __init__(self) -> None:
        """Know no message."""
        # Also when each was cancelled, by the monotonic clock.
        self._cancelled = CANCELLED_SCHEMA.append(pa.field("at_s", pa.float64())).empty_table()

    def add(self, cancelled: pa.Table, horizon_ms: int) -> None:
        """Add those of `cancelled` (`CANCELLED_SCHEMA`) that may be loaded: due before `horizon_ms`, epoch ms."""
        loaded = (pc.field("from_ms") > NEVER_MS) & (pc.field("from_ms") < horizon_ms)
        new = cancelled.filter(loaded)
        at_s = pa.repeat(pa.scalar(time.monotonic()), new.num_rows)
        self._cancelled = pa.concat_tables([self._cancelled, new.append_column("at_s", at_s)])

    def due_between(self, start_ms: int, end_ms: int) -> Ids:
        """Return those that may be due in [start_ms, end_ms)."""
        in_range = (pc.field("from_ms") < end_ms) & (pc.field("until_ms") >= start_ms)
        return ids_in(self._cancelled.filter(in_range))

    def forget_from(self, due_ms: int) -> None:
        """Forget what is due at `due_ms` (epoch ms) or later: it will be loaded again, without what is cancelled."""
        self._cancelled = self._cancelled.filter(pc.field("from_ms") < due_ms)

    def forget_before(self, due_ms: int, oldest_s: float) -> None:
        """Forget what is due before `due_ms`, epoch ms, and what was cancelled before all that is loaded was read.

        The first was read at `oldest_s`, by the monotonic clock.
        """
        needed = (pc.field("until_ms") >= due_ms) & (pc.field("at_s") >= oldest_s)
        self._cancelled = self._cancelled.filter(needed).combine_chunks()
