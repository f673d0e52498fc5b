"""The rows of ids that earlier batches have stored: which messages are cancelled, and which have a name.

They are read from the table once, beside the first batches or when the first ask comes, to the local disk: cancelled
ids into runs, names and what was replaced into SQLite. A query of the table would cost each batch half a second of
Spark, and more with the number of rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import CancelledIds, successor_of, successor_texts
from state.buckets.parts import IdRows
from state.cancel import NONE_REPLACED, MessageId, Successor
from state.checkpoint.origin import CheckpointOrigin, by_partition
from state.kinds import Mask
from state.message_ids import ID, Ids, ids_of, is_below
from state.names import NAMED_SCHEMA
from streaming.job.requests.id_runs import IdRuns
from streaming.job.requests.local_database import as_tuples, local_database, table_from

_TABLES = """
    CREATE TABLE replaced (topic TEXT, partition INTEGER, offset INTEGER, max_deliver_at_ms INTEGER, replacement BLOB,
        bucket INTEGER, PRIMARY KEY (topic, partition, offset)) WITHOUT ROWID;
    CREATE TABLE named (name BLOB PRIMARY KEY, topic TEXT, partition INTEGER, offset INTEGER, deliver_at_ms INTEGER,
        until_ms INTEGER, keeps INTEGER, bucket INTEGER) WITHOUT ROWID;
    CREATE INDEX keeping ON named (topic, partition, offset) WHERE keeps;
"""
# Each time that an id is cancelled it may be another message's, of a topic that was made anew.
_ADD_REPLACED = "INSERT OR REPLACE INTO replaced VALUES (?, ?, ?, ?, ?, ?)"
# Of several messages that got a name, the newest has it; of one that repeats, its last occurrence counts.
_ADD_NAMED = """
    INSERT INTO named VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET
        topic = excluded.topic, partition = excluded.partition, offset = excluded.offset,
        deliver_at_ms = excluded.deliver_at_ms, until_ms = excluded.until_ms, keeps = excluded.keeps,
        bucket = excluded.bucket
    WHERE (excluded.bucket, excluded.partition, excluded.offset, excluded.deliver_at_ms)
        > (bucket, partition, offset, deliver_at_ms)
"""
_ASK_REPLACED = "SELECT replacement, bucket FROM replaced WHERE topic = ? AND partition = ? AND offset = ?"
_ASK_NAMED = """
    SELECT name, topic, partition, offset, deliver_at_ms, until_ms, keeps FROM named WHERE name = ? AND until_ms >= ?
"""
_ASK_KEEPING = """
    SELECT name, topic, partition, offset, deliver_at_ms, until_ms, keeps FROM named
    WHERE keeps AND topic = ? AND partition = ? AND offset = ?
"""
_FORGET_REPLACED = "DELETE FROM replaced WHERE topic = ? AND partition = ? AND offset < ? AND max_deliver_at_ms < ?"
_DUE = "deliver_at_ms"


class StoredIds:
    """The stored ids as they are before the batch that asks. Not thread-safe."""

    def __init__(self, store: BucketTable) -> None:
        """Take the table. Nothing is read yet."""
        self._store = store
        self._ids: sqlite3.Connection | None = None
        self._cancelled = IdRuns()
        # The topics of messages that keep their names, or did.
        self._keeping: set[str] = set()

    def open(self, before_bucket: int, origin: CheckpointOrigin) -> None:
        """Read what batches before that of `before_bucket` have stored, unless it is read already.

        A lost batch of a checkpoint before that of `origin` may have stored names of records that are read again: these
        do not count.
        """
        if self._ids is not None:
            return
        self._ids = local_database(_TABLES)
        for table in self._store.ids_before(IdRows.CANCELLED, before_bucket):
            self._add_cancelled(table)
        for table in self._store.ids_before(IdRows.NAMED, before_bucket):
            names = table.filter(pa.array(~_are_read_again(table, origin)))
            self._add_names(names.select(["name", *ID, _DUE, "max_deliver_at_ms", "keeps", "bucket"]))

    def add(
        self,
        cancelled: pa.Table,
        names: pa.Table,
        bucket: int,
        replaced: Mapping[MessageId, Successor] = NONE_REPLACED,
    ) -> None:
        """Add what the batch of `bucket` stores: `CANCELLED_SCHEMA` and `NAMED_SCHEMA`, and what was `replaced`."""
        if self._ids is not None:
            ids = cancelled.rename_columns([*ID, _DUE, "max_deliver_at_ms"])
            ids = ids.append_column("name", successor_texts(cancelled, replaced))
            self._add_cancelled(_with_bucket(ids, bucket))
            self._add_names(_with_bucket(names, bucket))

    def _add_names(self, names: pa.Table) -> None:
        assert self._ids is not None
        self._keeping.update(names.filter(names.column("keeps")).column("topic").unique().to_pylist())
        self._ids.executemany(_ADD_NAMED, as_tuples(names))

    def _add_cancelled(self, ids: pa.Table) -> None:
        assert self._ids is not None
        self._cancelled.add(ids)
        replaced = ids.filter(pc.is_valid(ids.column("name"))).select([*ID, "max_deliver_at_ms", "name", "bucket"])
        self._ids.executemany(_ADD_REPLACED, as_tuples(replaced))

    def cancelled_among(self, ids: Ids) -> CancelledIds:
        """Return those of `ids` that are cancelled."""
        found = self._cancelled.buckets_of(ids)
        known = {source: offsets for source, (offsets, _) in found.items()}
        return CancelledIds(known, {source: buckets for source, (_, buckets) in found.items()})

    def replaced_among(self, ids: Ids) -> dict[MessageId, MessageId]:
        """Return those of `ids` that a replacement has cancelled, as far as that is stored, and its id."""
        return {own: each for own, each in self._successors(ids) if not isinstance(each, int)}

    def moved_among(self, ids: Ids) -> Ids:
        """Return those of `ids` that a batch has moved and handed over."""
        return ids_of(own for own, each in self._successors(ids) if isinstance(each, int))

    def _successors(self, ids: Ids) -> Iterator[tuple[MessageId, Successor]]:
        assert self._ids is not None
        if self._ids.execute("SELECT 1 FROM replaced LIMIT 1").fetchone() is None:
            return
        for source, (offsets, buckets) in self._cancelled.buckets_of(ids).items():
            for offset, bucket in zip(offsets.tolist(), buckets.tolist(), strict=True):
                row = self._ids.execute(_ASK_REPLACED, (*source, offset)).fetchone()
                # A later batch may have cancelled another message that has the id.
                if row is not None and row[1] == bucket:
                    yield (*source, offset), successor_of(row[0])

    def named_among(self, names: Iterable[bytes], from_ms: int) -> pa.Table:
        """Return which messages have one of `names` (`state.names.named`), as a table of `NAMED_SCHEMA`.

        Rows that are of no use since `from_ms` (epoch ms) are left out.
        """
        assert self._ids is not None
        return _names(self._ids.execute(_ASK_NAMED, (name, from_ms)).fetchone() for name in set(names))

    def keeping_among(self, ids: Ids) -> pa.Table:
        """Return which messages among `ids` keep their names, as a table of `NAMED_SCHEMA`."""
        assert self._ids is not None
        own = ((*source, offset) for source, offsets in ids.items() if source[0] in self._keeping for offset in offsets)
        return _names(self._ids.execute(_ASK_KEEPING, (*source, int(offset))).fetchone() for *source, offset in own)

    def forget(self, before_ms: int, old_below: Mapping[tuple[str, int], int]) -> None:
        """Forget what is of no use any more since `before_ms`, epoch ms: names, and cancelled ids.

        A message that was cancelled must also be below the offset that `old_below` has for its input partition.
        """
        if self._ids is not None:
            # Not in one condition for all: SQLite takes none of a thousand partitions.
            self._ids.executemany(_FORGET_REPLACED, ((*source, end, before_ms) for source, end in old_below.items()))
            self._cancelled.forget(before_ms, old_below)
            self._ids.execute("DELETE FROM named WHERE until_ms < ?", (before_ms,))

    def close(self) -> None:
        """Close the file. What asks next reads the table again."""
        if self._ids is not None:
            self._ids.close()
            self._ids, self._cancelled, self._keeping = None, IdRuns(), set()


def _names(found: Iterable[tuple[Any, ...] | None]) -> pa.Table:
    rows = ((*terms, bool(keeps)) for *terms, keeps in filter(None, found))
    return table_from(rows, NAMED_SCHEMA)


def _with_bucket(rows: pa.Table, bucket: int) -> pa.Table:
    return rows.append_column("bucket", pa.array([bucket] * rows.num_rows, pa.int64()))


def _are_read_again(names: pa.Table, origin: CheckpointOrigin) -> Mask:
    """Return which rows a lost batch has stored of records that the checkpoint of `origin` reads.

    Not by what it has read since, which differs from one process to the next: of an input topic that was created again
    offsets are low once more.
    """
    is_earlier = names.column("bucket").to_numpy() < origin.first_bucket
    return np.asarray(is_earlier & ~is_below(names, by_partition(origin.offsets)))
