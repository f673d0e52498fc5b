"""The services that remove files: those that the table has not named for its retention time, and old log entries."""

from __future__ import annotations

from functools import partial

from sinks.buckets.bucket_table import BucketTable
from streaming.maintenance.failures import CLEAN_LOG, VACUUM
from streaming.maintenance.step import Moment, Outcome, Step

_CLEAN_LOG_EVERY_S = 600.0
# The table's retention time, which counts by the wall clock, and a minute for the difference between clocks.
_KEPT_S = 3660.0
# An earlier run may have left files. Not at once, since a start has other things to do.
_FIRST_VACUUM_S = 300.0


class Vacuum:
    """Removes files once a vacuum finds some. All instants are in seconds."""

    kind = VACUUM

    def __init__(self, store: BucketTable, now_s: float) -> None:
        """Have the first vacuum a while after `now_s`."""
        self._store = store
        self._newest_s = now_s
        self._due_s: float | None = now_s + _FIRST_VACUUM_S

    def left(self, now_s: float) -> None:
        """Record that files were in use until `now_s`, and are left over since."""
        self._newest_s = now_s
        if self._due_s is None:
            self._due_s = now_s + _KEPT_S

    def due(self, at: Moment) -> Step | None:
        """See `Service.due`."""
        if self._due_s is None or at.now_s < self._due_s:
            return None
        return Step(self.kind, "a vacuum", partial(self._vacuum, at.now_s), [self.kind])

    def _vacuum(self, begun_s: float) -> Outcome:
        self._store.vacuum()
        return partial(self._vacuumed, begun_s)

    def _vacuumed(self, begun_s: float) -> None:
        # Another is due if some files were still too young for this one.
        self._due_s = begun_s + _KEPT_S if self._newest_s > begun_s - _KEPT_S else None


class LogCleanUp:
    """Removes old entries of the table's log every ten minutes."""

    kind = CLEAN_LOG

    def __init__(self, store: BucketTable, now_s: float) -> None:
        """Begin ten minutes after `now_s`."""
        self._store = store
        self._next_s = now_s + _CLEAN_LOG_EVERY_S

    def due(self, at: Moment) -> Step | None:
        """See `Service.due`."""
        if at.now_s < self._next_s:
            return None
        return Step(self.kind, "a clean-up of the table's log", partial(self._clean, at.now_s), [self.kind])

    def _clean(self, begun_s: float) -> Outcome:
        self._store.clean_log()
        return partial(self._cleaned, begun_s)

    def _cleaned(self, begun_s: float) -> None:
        self._next_s = begun_s + _CLEAN_LOG_EVERY_S
