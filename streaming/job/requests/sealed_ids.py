"""Finds sealed messages by their ids: a copy of the table's index, on the driver's local disk.

A request names a message of any age. A query of the table would read all metadata in each batch. The metadata grow with
the waiting messages, and even little costs half a second of Spark. So the index is copied in the background during the
first batches, or when the first request comes. Entries that are sealed or merged later are added. The copy is in the
order of the ids. In the table, an entry has the messages of a time, which may have any offsets. Each id takes 12 bytes.

A Delta partition with metadata is written once and removed whole, so the copy of one never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.buckets.bucket_table import BucketTable
from state.index.locate import LOCATED_SCHEMA, offsets_of
from state.message_ids import Ids, by_source
from streaming.job.requests.runs import Columns, Run, Source, chosen, ranges

_CLOSE_S = 5.0


class _Piece:
    """Some index entries of one Delta partition: their ids as a run, each with the number of its entry."""

    def __init__(self, entries: pa.Table) -> None:
        """Take a table of `ENTRY_SCHEMA`."""
        offsets, lengths = offsets_of(entries)
        firsts, of_entry = np.cumsum(lengths) - lengths, np.repeat(np.arange(len(lengths)), lengths)

        def by_id() -> Iterator[tuple[Source, Columns]]:
            for source, rows in by_source(entries):
                at = ranges(firsts[rows], lengths[rows])
                yield source, chosen((offsets, of_entry), at[np.argsort(offsets[at])])

        # If an input topic was created again, two messages may have the same id.
        self._ids = Run(by_id(), len(offsets), (np.int64, np.uint32))
        self._entries = entries.drop_columns(["offsets", "first_offset", "last_offset"])

    def located(self, ids: Ids) -> pa.Table:
        """Return a row for each of `ids` that is there: the columns of the entry, and the offset."""
        nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint32)
        found = (columns for _, columns in self._ids.find(ids))
        offsets, entry = map(np.concatenate, zip(nothing, *found, strict=True))
        return self._entries.take(pa.array(entry)).append_column("offset", pa.array(offsets))


class SealedIds:
    """The ids in the table of sealed buckets. Any thread may use it."""

    def __init__(self, store: BucketTable) -> None:
        """Take the table. Nothing is read yet."""
        self._store = store
        # By Delta partition.
        self._pieces: dict[str, list[_Piece]] = {}
        # The Delta partitions that are copied whole, and the version of the table that has just these.
        self._copied: set[str] = set()
        self._version: int | None = None
        # Whether any id was looked up, or will be.
        self._is_used = False
        self._lock = Lock()

    def locate(self, ids: Ids, before_bucket: int, from_ms: int, version: int) -> pa.Table:
        """Return the places of `ids` that wait in a bucket before `before_bucket`, as a table of `LOCATED_SCHEMA`.

        A message that is due before `from_ms` (epoch ms) may have a row or not. `version` is the version of the table.
        """
        with self._lock:
            self._is_used = True
            self._copy(version)
            found = (piece.located(ids) for own in self._pieces.values() for piece in own)
            waits = (pc.field("bucket") < before_bucket) & (pc.field("max_deliver_at_ms") >= from_ms)
            columns = LOCATED_SCHEMA.names
            several = (each.filter(waits).select(columns) for each in found if each.num_rows)
            return pa.concat_tables([LOCATED_SCHEMA.empty_table(), *several])

    def look_ahead(self, is_expected: bool = False) -> None:
        """Copy the present index of the table, if ids were looked up before, or if that `is_expected` from now on."""
        with self._lock:
            self._is_used |= is_expected
            if self._is_used:
                self._copy(self._store.version())

    def close(self) -> None:
        """Forget the copy, unless another thread reads the table for so long that the process should rather end."""
        if self._lock.acquire(timeout=_CLOSE_S):
            self._pieces.clear()
            self._copied.clear()
            self._version = None
            self._lock.release()

    def _copy(self, version: int) -> None:
        """Update the copy to the table at `version`."""
        # Delta lists the partitions of a version in a Spark job.
        if version == self._version:
            return
        self._version = None
        live = self._store.metadata_partitions(version)
        self._copied &= live
        # Drop the pieces that a failed reading has left.
        self._pieces = {part: own for part, own in self._pieces.items() if part in self._copied}
        if missing := live - self._copied:
            for entries in self._store.index_entries_of(missing, version):
                for part in entries.column("part").unique().to_pylist():
                    own = entries.filter(pc.equal(entries.column("part"), part))
                    self._pieces.setdefault(part, []).append(_Piece(own))
            self._copied |= missing
        self._version = version
