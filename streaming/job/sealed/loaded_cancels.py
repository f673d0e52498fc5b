"""Messages that were cancelled after the prefetch window loaded them. Staging leaves them out."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA, NEVER_MS
from state.message_ids import Ids, ids_in


class LoadedCancels:
    """The cancelled messages that a loaded piece may still have.

    There are no more of them than loaded messages, and all were cancelled after the oldest piece was loaded. So they
    were cancelled within the last half hour, or a quarter of an hour more (`streaming.job.sealed.prefetch_window`).
    """

    def __init__(self) -> None:
        """Start without messages."""
        # Also when each was cancelled, by the monotonic clock.
        self._cancelled = CANCELLED_SCHEMA.append(pa.field("at_s", pa.float64())).empty_table()

    def add(self, cancelled: pa.Table, horizon_ms: int) -> None:
        """Add the `cancelled` messages (`CANCELLED_SCHEMA`) that may be loaded: due before `horizon_ms`, epoch ms."""
        loaded = (pc.field("from_ms") > NEVER_MS) & (pc.field("from_ms") < horizon_ms)
        new = cancelled.filter(loaded)
        at_s = pa.repeat(pa.scalar(time.monotonic()), new.num_rows)
        self._cancelled = pa.concat_tables([self._cancelled, new.append_column("at_s", at_s)])

    def due_between(self, start_ms: int, end_ms: int) -> Ids:
        """Return the messages that may be due in [start_ms, end_ms)."""
        in_range = (pc.field("from_ms") < end_ms) & (pc.field("until_ms") >= start_ms)
        return ids_in(self._cancelled.filter(in_range))

    def forget_from(self, due_ms: int) -> None:
        """Forget messages due at `due_ms` (epoch ms) or later: a later load leaves out the cancelled ones."""
        self._cancelled = self._cancelled.filter(pc.field("from_ms") < due_ms)

    def forget_before(self, due_ms: int, oldest_s: float) -> None:
        """Forget messages due before `due_ms`, epoch ms, and messages cancelled before the oldest piece was read.

        That piece was read at `oldest_s`, by the monotonic clock.
        """
        needed = (pc.field("until_ms") >= due_ms) & (pc.field("at_s") >= oldest_s)
        self._cancelled = self._cancelled.filter(needed).combine_chunks()
