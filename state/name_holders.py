"""Which message has a name once records are accepted again: of all that ever got the name, the newest.

A rebuild accepts again what a lost table had, and what took a name over may be gone with it: the message itself, or
the row that says that the one before is cancelled. So the names are decided anew, from the records that are read again
and the rows that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from state.buckets.cancelled import CANCELLED_SCHEMA, cancelled_rows
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.origin import CheckpointOrigin
from state.index.offset_bitmaps import OffsetBitmaps, in_bitmaps
from state.names import NAMED_SCHEMA, name_rows

# Messages that have got a name: also in which bucket that is stored, and whether the message is accepted again.
HOLDER_SCHEMA = NAMED_SCHEMA.append(pa.field("bucket", pa.int64())).append(pa.field("is_left", pa.bool_()))
# How many rows are made at once.
_ROWS = 10_000


class _Holder(NamedTuple):
    """A row of `HOLDER_SCHEMA`."""

    name: bytes
    topic: str
    partition: int
    offset: int
    deliver_at_ms: int
    until_ms: int
    bucket: int
    is_left: bool


def settled(origin: CheckpointOrigin, cancelled: OffsetBitmaps, overdue: OffsetBitmaps) -> ArrowFunction:
    """Return the `mapInArrow` function that decides which messages have their names when a checkpoint begins.

    The input is rows of `HOLDER_SCHEMA`, those of a name together, by partition and offset; the same message may have
    several. The output is rows of `table_rows.STORED_SCHEMA`, for the bucket before the first of `origin`:

    - names, of the messages that are accepted again and have them
    - cancelled ids, of those that another has taken the name from, and that wait: they are accepted again, are due at
      the cutoff of `origin` or later, or are among the `overdue`, which the table has; and they are not among those
      that are `cancelled` already
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names: list[_Holder] = []
        lost: list[_Holder] = []
        for _, holders in groupby(_holders(batches, origin), key=attrgetter("name")):
            for holder, has_name in _in_turn(holders):
                if not has_name:
                    lost.append(holder)
                elif holder.is_left:
                    names.append(holder)
                if len(names) + len(lost) >= _ROWS:
                    yield from rows(names, lost)
                    names, lost = [], []
        yield from rows(names, lost)

    def rows(names: Sequence[_Holder], lost: Sequence[_Holder]) -> Iterator[pa.RecordBatch]:
        named = _table([holder[: len(NAMED_SCHEMA)] for holder in names], NAMED_SCHEMA)
        taken = _table([(*holder[1:4], *[holder.deliver_at_ms] * 2) for holder in lost], CANCELLED_SCHEMA)
        waits = np.array([holder.is_left or holder.deliver_at_ms >= origin.cutoff_ms for holder in lost], dtype=bool)
        waits = (waits | in_bitmaps(taken, overdue)) & ~in_bitmaps(taken, cancelled)
        bucket = origin.overdue_bucket
        for table in (name_rows(named, bucket), cancelled_rows(taken.filter(pa.array(waits)), bucket)):
            yield from table.to_batches()

    return run


def _holders(batches: Iterable[pa.RecordBatch], origin: CheckpointOrigin) -> Iterator[_Holder]:
    """Yield the rows, but for those of records that the new checkpoint reads: a lost batch has stored their names."""
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            holder = _Holder(*row)
            if holder.offset < origin.offsets.get(holder.topic, {}).get(str(holder.partition), 0):
                yield holder


def _in_turn(holders: Iterable[_Holder]) -> Iterator[tuple[_Holder, bool]]:
    """Yield the messages that have got one name, each once, and whether it has the name.

    Of an input partition the last one counts. Of several partitions it is the one of the newest batch, as far as the
    table knows that; what is accepted again counts as newer.
    """
    last: list[_Holder] = []
    until_ms = 0
    for _, same in groupby(holders, key=attrgetter("partition", "offset")):
        holder = reduce(_merged, same)
        until_ms = max(until_ms, holder.until_ms)
        if last and last[-1].partition == holder.partition:
            yield last.pop(), False
        last.append(holder)
    *others, newest = sorted(last, key=attrgetter("bucket", "partition", "offset"))
    yield from ((holder, False) for holder in others)
    # Its row is of use as long as one of another would be found in its place.
    yield newest._replace(until_ms=until_ms), True


def _merged(one: _Holder, other: _Holder) -> _Holder:
    return one._replace(
        until_ms=max(one.until_ms, other.until_ms),
        bucket=min(one.bucket, other.bucket),
        is_left=one.is_left or other.is_left,
    )


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
