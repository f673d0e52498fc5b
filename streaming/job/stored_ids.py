"""The rows of ids that earlier batches have stored: which messages are cancelled, and which have a name.

They are read from the table once, when the first batch asks for them, into SQLite on the local disk. A query of the
table would cost each batch half a second of Spark, and more with the number of rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from sinks.bucket_table import BucketTable
from sinks.packed_rows import packed, unpacked
from state.buckets.cancelled import NONE_CANCELLED, CancelledIds, replacement_texts
from state.buckets.parts import IdRows
from state.cancel import NONE_REPLACED, MessageId
from state.checkpoint.origin import Offsets
from state.message_ids import ID_SCHEMA, Ids, each_of, parse_id
from state.names import NAMED_SCHEMA
from streaming.job.local_database import as_tuples, local_database

_TABLES = """
    CREATE TABLE cancelled (topic TEXT, partition INTEGER, offset INTEGER, max_deliver_at_ms INTEGER,
        replaced_by BLOB, bucket INTEGER, PRIMARY KEY (topic, partition, offset)) WITHOUT ROWID;
    CREATE TABLE named (name BLOB PRIMARY KEY, topic TEXT, partition INTEGER, offset INTEGER, deliver_at_ms INTEGER,
        until_ms INTEGER, bucket INTEGER) WITHOUT ROWID;
"""
# Each time that an id is cancelled it may be another message's, of a topic that was made anew.
_ADD_CANCELLED = """
    INSERT INTO cancelled VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (topic, partition, offset) DO UPDATE SET
        max_deliver_at_ms = excluded.max_deliver_at_ms, replaced_by = excluded.replaced_by,
        bucket = max(bucket, excluded.bucket)
"""
# Of several messages that got a name, the newest has it.
_ADD_NAMED = """
    INSERT INTO named VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET
        topic = excluded.topic, partition = excluded.partition, offset = excluded.offset,
        deliver_at_ms = excluded.deliver_at_ms, until_ms = excluded.until_ms, bucket = excluded.bucket
    WHERE (excluded.bucket, excluded.partition, excluded.offset) > (bucket, partition, offset)
"""
_ASK_CANCELLED = (
    "SELECT topic, partition, offset, bucket FROM cancelled WHERE topic = ? AND partition = ? AND offset = ?"
)
_ASK_REPLACED = "SELECT replaced_by FROM cancelled WHERE topic = ? AND partition = ? AND offset = ?"
_ASK_NAMED = """
    SELECT name, topic, partition, offset, deliver_at_ms, until_ms FROM named WHERE name = ? AND until_ms >= ?
"""
_FORGET_CANCELLED = "DELETE FROM cancelled WHERE topic = ? AND partition = ? AND offset < ? AND max_deliver_at_ms < ?"
_IDS, _DUE = ("topic", "partition", "offset"), "deliver_at_ms"
_ROW = ID_SCHEMA.append(pa.field("bucket", pa.int64()))


class StoredIds:
    """The stored ids as they are before the batch that asks. Not thread-safe."""

    def __init__(self, store: BucketTable) -> None:
        """Take the table. Nothing is read yet."""
        self._store = store
        self._ids: sqlite3.Connection | None = None

    def open(self, before_bucket: int, starts: Offsets) -> None:
        """Read what batches before that of `before_bucket` have stored, unless it is read already.

        What was stored of records from the offsets `starts` on does not count: a lost batch stored it, and they are
        read again.
        """
        if self._ids is not None:
            return
        self._ids = local_database(_TABLES)
        rows = self._store.id_rows(IdRows.CANCELLED, before_bucket, (*_IDS, "max_deliver_at_ms", "name", "bucket"))
        for table in _read(rows):
            self._ids.executemany(_ADD_CANCELLED, as_tuples(table))
        columns = ("name", *_IDS, _DUE, "max_deliver_at_ms", "bucket")
        for table in _read(self._store.id_rows(IdRows.NAMED, before_bucket, columns)):
            self._ids.executemany(_ADD_NAMED, (row for row in as_tuples(table) if not _is_read_again(row, starts)))

    def add(
        self,
        cancelled: pa.Table,
        names: pa.Table,
        bucket: int,
        replaced: Mapping[MessageId, MessageId] = NONE_REPLACED,
    ) -> None:
        """Add what the batch of `bucket` stores: `CANCELLED_SCHEMA` and `NAMED_SCHEMA`, and what was `replaced`."""
        if self._ids is not None:
            # In the order of the key, rows come to the same pages of the file: that halves the time.
            by_id = cancelled.sort_by([(name, "ascending") for name in _IDS])
            ids = by_id.select([*_IDS, by_id.column_names[-1]])
            ids = ids.append_column("name", replacement_texts(by_id, replaced))
            ids = ids.append_column("bucket", pa.array([bucket] * ids.num_rows, pa.int64()))
            self._ids.executemany(_ADD_CANCELLED, as_tuples(ids))
            self._ids.executemany(_ADD_NAMED, ((*row, bucket) for row in as_tuples(names)))

    def cancelled_among(self, ids: Ids) -> CancelledIds:
        """Return those of `ids` that are cancelled."""
        assert self._ids is not None
        found = (
            self._ids.execute(_ASK_CANCELLED, (topic, partition, offset)).fetchone()
            for (topic, partition), offsets in ids.items()
            for offset in offsets.tolist()
        )
        rows = [dict(zip(_ROW.names, row, strict=True)) for row in found if row is not None]
        return CancelledIds.of(pa.Table.from_pylist(rows, _ROW)) if rows else NONE_CANCELLED

    def replaced_among(self, ids: Ids) -> dict[MessageId, MessageId]:
        """Return those of `ids` that a replacement has cancelled, as far as that is stored, and its id."""
        assert self._ids is not None
        rows = ((each, self._ids.execute(_ASK_REPLACED, each).fetchone()) for each in each_of(ids))
        return {each: parse_id(row[0].decode()) for each, row in rows if row is not None and row[0] is not None}

    def named_among(self, names: Iterable[bytes], from_ms: int) -> pa.Table:
        """Return which messages have one of `names` (`state.names.named`), as a table of `NAMED_SCHEMA`.

        Rows that are of no use since `from_ms` (epoch ms) are left out.
        """
        assert self._ids is not None
        found = (self._ids.execute(_ASK_NAMED, (name, from_ms)).fetchone() for name in set(names))
        rows = [dict(zip(NAMED_SCHEMA.names, row, strict=True)) for row in found if row is not None]
        return pa.Table.from_pylist(rows, schema=NAMED_SCHEMA)

    def forget(self, before_ms: int, old_below: Mapping[tuple[str, int], int]) -> None:
        """Forget what is of no use any more since `before_ms`, epoch ms: names, and cancelled ids.

        A message that was cancelled must also be below the offset that `old_below` has for its input partition.
        """
        if self._ids is not None:
            # Not in one condition for all: SQLite takes none of a thousand partitions.
            self._ids.executemany(_FORGET_CANCELLED, ((*source, end, before_ms) for source, end in old_below.items()))
            self._ids.execute("DELETE FROM named WHERE until_ms < ?", (before_ms,))

    def close(self) -> None:
        """Close the file. What asks next reads the table again."""
        if self._ids is not None:
            self._ids.close()
            self._ids = None


def _read(rows: DataFrame | None) -> Iterator[pa.Table]:
    """Yield `rows` as Arrow tables, some at a time: there may be millions."""
    if rows is not None:
        yield from unpacked(packed(rows).toLocalIterator())


def _is_read_again(row: tuple[object, ...], starts: Mapping[str, Mapping[str, int]]) -> bool:
    _, topic, partition, offset, *_ = row
    assert isinstance(offset, int)
    return offset >= starts.get(str(topic), {}).get(str(partition), 0)
