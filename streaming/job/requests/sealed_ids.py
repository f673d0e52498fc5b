"""Where each message lies that is sealed, by its id: a copy of the table's index, on the driver's local disk.

An ask names messages of any age. To find them by a query of the table reads all metadata in each batch, which is what
waits in bytes, and costs half a second of Spark even if that is little. So the index entries are copied beside the
first batches, or when the first ask comes, and what is sealed or merged later is added. A search reads the entries that
may have one of the ids, by the bounds of their offsets.

A Delta partition with metadata is written once and removed whole, so the copy of one never changes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.buckets.bucket_table import BucketTable
from state.index.locate import ENTRY_SCHEMA, LOCATED_SCHEMA, located
from state.message_ids import Ids
from streaming.job.requests.local_database import as_tuples, local_database, table_from

# The columns of `ENTRY_SCHEMA`, in its order.
_TABLES = """
    CREATE TABLE entries (topic TEXT, partition INTEGER, part TEXT, bucket INTEGER,
        from_ms INTEGER, until_ms INTEGER, max_deliver_at_ms INTEGER, first_offset INTEGER, last_offset INTEGER,
        offsets BLOB);
    CREATE INDEX by_offset ON entries (topic, partition, last_offset, first_offset, max_deliver_at_ms, bucket);
    CREATE INDEX by_part ON entries (part);
"""
_ADD = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM entries WHERE part = ?"
# By the index alone.
_MAY_HAVE = """
    SELECT rowid, first_offset, last_offset FROM entries WHERE topic = ? AND partition = ?
        AND last_offset >= ? AND first_offset <= ? AND max_deliver_at_ms >= ? AND bucket < ?
"""
# Of many in one statement: a call for each takes longer than to search it.
_READ = "SELECT entries.* FROM json_each(?) AS chosen CROSS JOIN entries ON entries.rowid = chosen.value"
# An entry has about a thousand ids, of four bytes.
_ENTRIES_AT_ONCE = 2_000
_CLOSE_S = 5.0


class SealedIds:
    """The ids in the table of sealed buckets. Any thread may use it."""

    def __init__(self, store: BucketTable) -> None:
        """Take the table. Nothing is read yet."""
        self._store = store
        self._entries: sqlite3.Connection | None = None
        # The Delta partitions that are copied, and the version of the table whose they are, if it is copied whole.
        self._copied: set[str] = set()
        self._version: int | None = None
        # Whether something was sought since the last look ahead.
        self._is_used = self._is_kept = False
        self._lock = Lock()

    def locate(self, ids: Ids, before_bucket: int, from_ms: int, version: int) -> pa.Table:
        """Return where those of `ids` lie that wait in a bucket before `before_bucket`, as a table of `LOCATED_SCHEMA`.

        Of a message that is due before `from_ms` (epoch ms), a row may be there or not. `version` is that of the table.
        """
        with self._lock:
            self._is_used = True
            self._copy(version)
            found = (located(entries, ids) for entries in self._that_may_have(ids, before_bucket, from_ms))
            return pa.concat_tables([LOCATED_SCHEMA.empty_table(), *found])

    def keep(self) -> None:
        """Copy what the table has by now, and from here on at each `look_ahead`."""
        self._is_kept = True
        self.look_ahead()

    def look_ahead(self) -> None:
        """Copy what the table has by now, if the copy is kept, or anything was sought since the last call."""
        with self._lock:
            if self._is_used or self._is_kept:
                self._is_used = False
                self._copy(self._store.version())

    def close(self) -> None:
        """Close the file, unless another thread reads the table for so long that the process had better end."""
        if self._lock.acquire(timeout=_CLOSE_S):
            if self._entries is not None:
                self._entries.close()
                self._entries = None
            self._copied.clear()
            self._version = None
            self._lock.release()

    def _copy(self, version: int) -> None:
        """Let the copy be that of the table at `version`."""
        # Which partitions a version has, Delta works out in a Spark job.
        if version == self._version:
            return
        self._version = None
        if self._entries is None:
            self._entries = local_database(_TABLES)
        live = self._store.metadata_partitions(version)
        # Also what a reading that failed has left of those that are missing.
        self._entries.executemany(_REMOVE, ((part,) for part in self._copied ^ live))
        self._copied &= live
        if missing := live - self._copied:
            for entries in self._store.index_entries_of(missing, version):
                self._entries.executemany(_ADD, as_tuples(entries))
            self._copied |= missing
        self._version = version

    def _that_may_have(self, ids: Ids, before_bucket: int, from_ms: int) -> Iterator[pa.Table]:
        """Yield the entries that may have one of `ids`, some at a time."""
        assert self._entries is not None
        numbers = [
            number
            for source, offsets in ids.items()
            for number in self._numbers(source, offsets, before_bucket, from_ms)
        ]
        for at in range(0, len(numbers), _ENTRIES_AT_ONCE):
            some = numbers[at : at + _ENTRIES_AT_ONCE]
            yield table_from(self._entries.execute(_READ, (json.dumps(some),)), ENTRY_SCHEMA)

    def _numbers(
        self, source: tuple[str, int], offsets: npt.NDArray[np.int64], before_bucket: int, from_ms: int
    ) -> list[int]:
        """Return the numbers of the entries of a source whose bounds have one of its `offsets`, which ascend."""
        assert self._entries is not None
        first, last = int(offsets[0]), int(offsets[-1])
        rows = self._entries.execute(_MAY_HAVE, (*source, first, last, from_ms, before_bucket)).fetchall()
        if not rows:
            return []
        numbers, firsts, lasts = np.array(rows, dtype=np.int64).T
        # None lies above the last one, so that there is always a next.
        chosen: list[int] = numbers[offsets[np.searchsorted(offsets, firsts)] <= lasts].tolist()
        return chosen
