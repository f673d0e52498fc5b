"""Which message has a name once records are accepted again.

The newest message that got the name and is not cancelled has it. Where messages keep their names, the first message
that waits and was accepted to keep the name has it. The mode that was stored with the name counts, not the present one.

A rebuild accepts the messages of a lost table again. With the table, a message that took over a name may be lost, or
the row which says that the message before it is cancelled. So the names are decided again, from the records that are
read again and the rows that are left. The due time of a message that took it over is decided in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from state.buckets.cancelled import CANCELLED_SCHEMA, cancelled_rows
from state.buckets.retimed import RETIMED_SCHEMA
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.origin import CheckpointOrigin
from state.index.offset_bitmaps import OffsetBitmaps
from state.message_ids import table_from
from state.names import KEEP, KEEP_TIME, NAMED_SCHEMA, name_rows

# Messages that have got a name, with the bucket in which the name is stored, and whether the message is accepted again.
HOLDER_SCHEMA = NAMED_SCHEMA.append(pa.field("bucket", pa.int64())).append(pa.field("is_left", pa.bool_()))
# Among several messages of a name, the one with the greatest of these keys is the newest.
_BY_AGE: Callable[[_Holder], tuple[int, ...]] = attrgetter("bucket", "partition", "offset", "deliver_at_ms")
# How many rows are made at once.
_ROWS = 10_000


class _Holder(NamedTuple):
    """A row of `HOLDER_SCHEMA`, and whether it is stored."""

    name: bytes
    topic: str
    partition: int
    offset: int
    deliver_at_ms: int
    until_ms: int
    keeps: bool
    bucket: int
    is_left: bool
    # Whether the table had the row.
    is_stored: bool = False


@dataclass(frozen=True)
class NamesLeft:
    """Decides about the names when a checkpoint begins.

    - `origin`: the origin of the new checkpoint
    - `cancelled`: messages that are cancelled already
    - `overdue`: messages that wait in the table, and are due before the cutoff of `origin`
    - `name_mode`: returns for an input topic which of several messages of a name waits (`state.names`)

    Both functions are for `mapInArrow`. Their input is rows of `HOLDER_SCHEMA`. The rows of a name come together, by
    partition and offset. The same message may have several rows.
    """

    origin: CheckpointOrigin
    cancelled: OffsetBitmaps
    overdue: OffsetBitmaps
    name_mode: Callable[[str], str]

    def settled(self) -> ArrowFunction:
        """Return the function that decides which messages have their names.

        The output is rows of `table_rows.STORED_SCHEMA`, for the bucket before the first of `origin`:

        - names, of the messages that are accepted again and have them
        - cancelled ids, of waiting messages that have lost their name to another message. A message waits if it is
          accepted again. It also waits if the table has its name, and it is due at the cutoff of `origin` or later, or
          is among the `overdue`, which the table has. Messages that are `cancelled` already do not wait

        Records are accepted by present policies and the present clock. For a record that is not accepted again, these
        say neither whether it had a name nor when it was due.
        """

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            decided = (
                each
                for mode, holders in self._by_name(batches)
                for each in (self._first(holders) if mode == KEEP else self._newest(holders))
            )
            while some := list(islice(decided, _ROWS)):
                names = [holder for holder, has_name in some if has_name and holder.is_left]
                yield from self._rows(names, [holder for holder, has_name in some if not has_name])

        return run

    def taken_over(self) -> ArrowFunction:
        """Return the function that gives the due times which records have taken over (`RETIMED_SCHEMA`).

        It gives only due times that the table does not show. A batch stores the name with the due time, so the table is
        older than such a record. By its own due time the record may count as staged while the message before it waits.
        It is not due sooner than that message.
        """

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            every = (
                (holder.topic, holder.partition, holder.offset, due_ms, due_ms)
                for mode, holders in self._by_name(batches)
                if mode == KEEP_TIME
                for holder, due_ms in self._later(holders)
            )
            while rows := list(islice(every, _ROWS)):
                yield from table_from(rows, RETIMED_SCHEMA).to_batches()

        return run

    def _by_name(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Iterable[_Holder]]]:
        """Yield the holders of each name, and the mode of its topic."""
        for (_, topic), holders in groupby(_holders(batches, self.origin), key=attrgetter("name", "topic")):
            yield self.name_mode(topic), holders

    def _first(self, holders: Iterable[_Holder]) -> Iterator[tuple[_Holder, bool]]:
        """Yield the messages that have got one name, each once, and whether it has the name: the first that keeps it.

        That message waits. If no waiting message keeps the name, the newest waiting message has it. Among several
        partitions the message of the oldest batch comes first, as far as the table knows. If no message waits, no
        message keeps the name. The row of a message that a release process has recalled may still say that it does.
        """
        of_partitions: dict[int, _Holder] = {}
        newest: _Holder | None = None
        until_ms, may_be_kept = 0, False
        for holder in _each(holders):
            # A cancelled message whose name is not stored was dropped: it never had the name.
            if holder.is_stored or not self._is_cancelled(holder):
                newest = holder if newest is None else max(newest, holder, key=_BY_AGE)
            until_ms = max(until_ms, holder.until_ms)
            may_be_kept |= holder.keeps and holder.is_stored
            if not self._waits(holder):
                yield holder, False
                continue
            before = of_partitions.get(holder.partition)
            if before is not None:
                yield (holder if before.keeps else before), False
            if before is None or not before.keeps:
                of_partitions[holder.partition] = holder
        in_turn = sorted(of_partitions.values(), key=_BY_AGE)
        first = next((holder for holder in in_turn if holder.keeps), in_turn[-1] if in_turn else None)
        yield from ((holder, False) for holder in in_turn if holder is not first)
        if first is not None:
            # Its row must be newer than any other message's row.
            yield first._replace(until_ms=until_ms, is_left=first.is_left or first is not newest), True
        elif newest is not None and may_be_kept:
            yield newest._replace(until_ms=until_ms, keeps=False, is_left=True), True

    def _newest(self, holders: Iterable[_Holder]) -> Iterator[tuple[_Holder, bool]]:
        """Yield the messages that have got one name, each once, and whether it has the name: the newest.

        Within an input partition the last message counts. Among several partitions it is the message of the newest
        batch, as far as the table knows. A message that is accepted again counts as newer. A cancelled message has not
        taken the name from a waiting one: a message that it replaced is cancelled as well, and if it was dropped it had
        no name.
        """
        last: list[_Holder] = []
        until_ms = 0
        for holder in _each(holders):
            until_ms = max(until_ms, holder.until_ms)
            if self._is_cancelled(holder):
                yield holder, False
                continue
            if last and last[-1].partition == holder.partition:
                yield last.pop(), False
            last.append(holder)
        in_turn = sorted(last, key=_BY_AGE)
        yield from ((holder, False) for holder in in_turn[:-1])
        # Its row is needed as long as another message's row would be found in its place.
        yield from ((holder._replace(until_ms=until_ms), True) for holder in in_turn[-1:])

    def _later(self, holders: Iterable[_Holder]) -> Iterator[tuple[_Holder, int]]:
        """Yield each message of one name that takes over a later due time from a message before it, and this time."""
        before: _Holder | None = None
        for holder in _each(holders):
            if self._is_cancelled(holder):
                continue
            if before is None or before.partition != holder.partition or holder.is_stored:
                before = holder if holder.keeps and self._waits(holder) else None
            elif holder.deliver_at_ms < before.deliver_at_ms:
                yield holder, before.deliver_at_ms

    def _rows(self, names: Sequence[_Holder], lost: Sequence[_Holder]) -> Iterator[pa.RecordBatch]:
        named = table_from([holder[: len(NAMED_SCHEMA)] for holder in names], NAMED_SCHEMA)
        taken = [(*holder[1:4], *[holder.deliver_at_ms] * 2) for holder in lost if self._waits(holder)]
        bucket = self.origin.overdue_bucket
        for table in (name_rows(named, bucket), cancelled_rows(table_from(taken, CANCELLED_SCHEMA), bucket)):
            yield from table.to_batches()

    def _waits(self, holder: _Holder) -> bool:
        may_wait = holder.is_stored and (holder.deliver_at_ms >= self.origin.cutoff_ms or _is_in(self.overdue, holder))
        return (holder.is_left or may_wait) and not self._is_cancelled(holder)

    def _is_cancelled(self, holder: _Holder) -> bool:
        return _is_in(self.cancelled, holder)


def _holders(batches: Iterable[pa.RecordBatch], origin: CheckpointOrigin) -> Iterator[_Holder]:
    """Yield the rows, except for records that the new checkpoint reads: a lost batch has stored their names."""
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            holder = _Holder(*row)
            holder = holder._replace(is_stored=holder.bucket < origin.overdue_bucket)
            if holder.offset < origin.offsets.get(holder.topic, {}).get(str(holder.partition), 0):
                yield holder


def _is_in(ids: OffsetBitmaps, holder: _Holder) -> bool:
    own = ids.get((holder.topic, holder.partition))
    return own is not None and holder.offset in own


def _each(holders: Iterable[_Holder]) -> Iterator[_Holder]:
    """Yield each of `holders` once: there may be several rows of it."""
    for _, same in groupby(holders, key=attrgetter("partition", "offset")):
        yield reduce(_merged, same)


def _merged(one: _Holder, other: _Holder) -> _Holder:
    # For a message that is accepted again, the present due time counts. For others, the due time in the table counts:
    # the last one of a message that repeats. For records that are read again, only present clocks tell the due time.
    due = max(one, other, key=lambda holder: (holder.is_left, holder.is_stored, holder.deliver_at_ms))
    return due._replace(
        until_ms=max(one.until_ms, other.until_ms),
        # A message is accepted again by the present mode, so a stored row decides if there is one.
        keeps=any(each.keeps for each in (one, other) if each.is_stored or not (one.is_stored or other.is_stored)),
        bucket=min(one.bucket, other.bucket),
        is_left=one.is_left or other.is_left,
        is_stored=one.is_stored or other.is_stored,
    )
