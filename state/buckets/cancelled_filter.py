"""Leaving out cancelled messages where their chunks are: ids and messages pass each other in the order of due times.

Chunks of messages and chunks of cancelled ids are sorted by the order keys of their first rows, and come in one stream.
The key of a cancelled id has the earliest time at which its message may be due. So when all chunks before a key have
come, all ids are known that can cancel a message before that key. An id is forgotten when the stream has passed the
latest time at which its message may be due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CancelledIds
from state.cancel import without_named
from state.chunk_merge import PIECE_BYTES, merge
from state.message import decode_chunk
from state.message_ids import ID, by_source
from state.order import OrderKey, keys_of

# Old ids are forgotten once so many are known, or twice the number that was left the last time. An id takes 24 bytes.
_MANY_IDS = 1 << 18
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CancelledFilter:
    """Leaves out messages, but no requests, that were cancelled by batches up to the one that seals `until_bucket`.

    - `count`: is called at the end of a task with the number of messages that it has left out
    - `piece_bytes`: about how many bytes of messages leave at once (`state.chunk_merge`)
    - `least_ids`: from how many ids on the filter forgets passed ones
    """

    until_bucket: int
    count: Callable[[int], None] = lambda _: None
    piece_bytes: int = PIECE_BYTES
    least_ids: int = _MANY_IDS

    def left(self, batches: Iterable[pa.RecordBatch], start_ms: int, end_ms: int) -> Iterator[pa.Table]:
        """Yield the messages due in [start_ms, end_ms) that are not cancelled, in delivery order.

        The rows of `batches` are in order of their keys (`ORDER`), and have the columns bucket, chunk and `has_ids`:
        whether the chunk has cancelled ids (`state.buckets.id_rows.ID_ROW_SCHEMA`).
        """
        ids, count = _PassingIds(start_ms, end_ms, self.until_bucket, self.least_ids), 0
        for messages in merge(_keyed_chunks(batches, start_ms, end_ms, ids), self.piece_bytes):
            own = messages.drop_columns(["bucket"])
            left = without_named(own, ids.contains_mask(messages))
            count += own.num_rows - left.num_rows
            if left.num_rows:
                yield left
        self.count(count)


def between(messages: pa.Table, start_ms: int, end_ms: int) -> pa.Table:
    """Return the messages that are due in [start_ms, end_ms). `messages` is in delivery order."""
    dues = messages.column("deliver_at_ms").to_numpy()
    start, end = np.searchsorted(dues, [start_ms, end_ms])
    return messages.slice(int(start), int(end - start))


def _keyed_chunks(
    batches: Iterable[pa.RecordBatch], start_ms: int, end_ms: int, ids: _PassingIds
) -> Iterator[tuple[OrderKey, pa.Table | None]]:
    """Yield chunks of messages with their buckets, for `merge`, and add the ids that come between them to `ids`."""
    for batch in batches:
        columns = (batch.column("bucket").to_pylist(), batch.column("has_ids").to_pylist(), batch.column("chunk"))
        for key, bucket, has_ids, chunk in zip(keys_of(batch), *columns, strict=True):
            rows = decode_chunk(chunk.as_py())
            if not has_ids:
                messages = between(rows, start_ms, end_ms)
                yield key, messages.append_column("bucket", pa.repeat(pa.scalar(bucket), messages.num_rows))
                continue
            ids.add(rows)
            if ids.are_many:
                # Messages before the key need not wait for others. After them no id that is due before it is needed.
                yield key, None
                ids.forget_before(key.deliver_at_ms)


class _Ids(NamedTuple):
    """Ids of one source, by offset and bucket: the offset, the bucket of the batch that cancelled it, the last due
    time (epoch ms).
    """

    offsets: _Numbers
    buckets: _Numbers
    dues: _Numbers

    def of(self, rows: npt.NDArray[np.bool_] | _Numbers) -> _Ids:
        return _Ids(*(column[rows] for column in self))


class _PassingIds:
    """The cancelled ids that messages may still meet: due in [start_ms, end_ms), cancelled up to `until_bucket`."""

    def __init__(self, start_ms: int, end_ms: int, until_bucket: int, least: int) -> None:
        self._wanted = (
            (pc.field("deliver_at_ms") < end_ms)
            & (pc.field("max_deliver_at_ms") >= start_ms)
            & (pc.field("bucket") <= until_bucket)
        )
        self._new: list[pa.Table] = []
        self._sources: dict[tuple[str, int], _Ids] = {}
        self._count, self._least, self._most = 0, least, least

    @property
    def are_many(self) -> bool:
        """Whether it is worthwhile to forget some ids."""
        return self._count >= self._most

    def add(self, ids: pa.Table) -> None:
        """Add ids (`ID_ROW_SCHEMA`)."""
        wanted = ids.select([*ID, "max_deliver_at_ms", "bucket", "deliver_at_ms"]).filter(self._wanted)
        self._new.append(wanted)
        self._count += wanted.num_rows

    def forget_before(self, due_ms: int) -> None:
        """Forget the messages that are due before `due_ms` (epoch ms)."""
        self._take_in()
        left = {source: ids.of(ids.dues >= due_ms) for source, ids in self._sources.items()}
        self._sources = {source: ids for source, ids in left.items() if len(ids.offsets)}
        self._count = sum(len(ids.offsets) for ids in self._sources.values())
        self._most = max(self._least, 2 * self._count)

    def contains_mask(self, messages: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows of a table, which has the columns `ID` and bucket, are cancelled."""
        self._take_in()
        offsets, buckets = ({source: ids[column] for source, ids in self._sources.items()} for column in (0, 1))
        return CancelledIds(offsets, buckets).contains_mask(messages, messages.column("bucket").to_numpy())

    def _take_in(self) -> None:
        if not self._new:
            return
        new, self._new = pa.concat_tables(self._new).combine_chunks(), []
        columns = [new.column(name).to_numpy() for name in ("offset", "bucket", "max_deliver_at_ms")]
        for source, rows in by_source(new):
            ids = _Ids(*(column[rows] for column in columns))
            if (known := self._sources.get(source)) is not None:
                ids = _Ids(*map(np.concatenate, zip(known, ids, strict=True)))
            # The first row of an id counts: an id that several batches have cancelled counts as of the last one.
            self._sources[source] = ids.of(np.lexsort((-ids.buckets, ids.offsets)))
