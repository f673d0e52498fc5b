"""The service that joins Delta partitions with ids of messages, and leaves out the ids that are of no use any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from conf.setting_types import HOUR
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.join_commits import join_ids, join_names
from state.buckets.cancelled import Forgettable
from state.buckets.merge import choose
from state.buckets.parts import IdRows
from streaming.maintenance.failures import JOIN, Failures
from streaming.maintenance.step import Moment, Outcome, Step
from streaming.maintenance.stretches import stretches

log = logging.getLogger(__name__)

# The ids of these are of use for as long as cancelled messages are known. How often each of their Delta partitions is
# written again, without those that are of no use any more: until there are enough of its size to be joined with, a year
# may pass if ids are known for a month.
_LONG_KEPT = (IdRows.CANCELLED, IdRows.RETIMED)
_FORGET_EVERY_S = 86_400.0
# A process may not live for a day.
_FIRST_FORGET_S = 3_600.0
# About what an id takes in the table.
_ROW_BYTES = {IdRows.CANCELLED: 24, IdRows.NAMED: 44, IdRows.RETIMED: 24}
# Rows of messages that were due this long ago, in ms, are not needed any more. Longer than `clock.horizon` may be: a
# batch looks up a message with a name until it is due and staged, and its replay must find the same.
_IDS_KEPT_MS = 2 * HOUR


class IdJoins:
    """Knows which Delta partitions with ids the table has, and joins them."""

    kind = JOIN

    def __init__(
        self,
        store: BucketTable,
        id_rows: Mapping[IdRows, Mapping[int, int]],
        forgettable: Callable[[int], Forgettable],
        fan_in: int,
        failures: Failures,
        joined: Callable[[], None],
        now_s: float,
    ) -> None:
        """Join nothing yet.

        Args:
            store: the table of sealed buckets.
            id_rows: the bytes of each Delta partition of rows of a kind, by the bucket in its name.
            forgettable: returns which ids, but for names, are of no use any more, given the cutoff (epoch ms) below
                which everything is staged.
            fan_in: how many partitions are joined.
            failures: the partitions that are set aside.
            joined: is called after each join.
            now_s: the time, in seconds.
        """
        self._store = store
        self._sizes = {kind: dict(id_rows.get(kind, {})) for kind in IdRows}
        self._forgettable = forgettable
        self._fan_in = fan_in
        self._failures = failures
        self._joined = joined
        # And of which Delta partition ids were forgotten last: the kind and the bucket.
        self._next_forget_s, self._forgot = now_s + _FIRST_FORGET_S, ("", -1)

    def stored(self, kind: IdRows, bucket: int, count: int) -> None:
        """Add the rows of a `kind` that the batch of `bucket` has stored, `count` of them."""
        if count:
            self._sizes[kind][bucket] = count * _ROW_BYTES[kind]

    def due(self, at: Moment) -> Step | None:
        """See `Service.due`."""
        step = self._next(at)
        present = [(kind, number) for kind, sizes in self._sizes.items() for number in sizes]
        self._failures.keep(self.kind, present, () if step is None else step.items)
        return step

    def _next(self, at: Moment) -> Step | None:
        waiting = self._failures.waiting(self.kind)
        committed = {
            kind: {number: size for number, size in sizes.items() if number <= at.last_bucket}
            for kind, sizes in self._sizes.items()
        }
        aside = {kind: {number for number in sizes if (kind, number) in waiting} for kind, sizes in committed.items()}
        forget_before_ms = at.staged_before_ms - _IDS_KEPT_MS
        written = sorted((kind.value, number) for kind in _LONG_KEPT for number in committed[kind].keys() - aside[kind])
        if at.now_s >= self._next_forget_s and written:
            self._next_forget_s = at.now_s + _FORGET_EVERY_S / len(written)
            self._forgot = next((each for each in written if each > self._forgot), written[0])
            value, number = self._forgot
            return self._step(IdRows(value), [number], forget_before_ms)
        # The kind with the most partitions first: joins of the other may not keep it waiting.
        for kind, sizes in sorted(committed.items(), key=lambda each: -len(each[1])):
            for stretch in stretches(sizes, aside[kind]):
                if joined := choose({number: sizes[number] for number in stretch}, self._fan_in):
                    return self._step(kind, joined, forget_before_ms)
        return None

    def _step(self, kind: IdRows, buckets: list[int], forget_before_ms: int) -> Step:
        what = f"a join of {kind.name.lower()} ids of buckets {buckets}"
        items = [(kind, number) for number in buckets]
        return Step(self.kind, what, partial(self._join, kind, buckets, forget_before_ms), items)

    def _join(self, kind: IdRows, buckets: list[int], forget_before_ms: int) -> Outcome:
        log.info("joining %d partitions of %s ids", len(buckets), kind.name.lower())
        if kind is IdRows.NAMED:
            join_names(self._store, buckets, forget_before_ms)
        else:
            join_ids(self._store, kind, buckets, self._forgettable(forget_before_ms))
        return partial(self._adopt, kind, buckets, self._store.id_partitions(kind))

    def _adopt(self, kind: IdRows, buckets: list[int], sizes: dict[int, int]) -> None:
        newer = {number: size for number, size in self._sizes[kind].items() if number > buckets[-1]}
        self._sizes[kind] = sizes | newer
        self._joined()
