"""Finds sealed messages by their ids: a copy of the table's index, on the driver's local disk.

A request names a message of any age. A query of the table would read all metadata in each batch. The metadata grow with
the waiting messages, and even little costs half a second of Spark. So the index is copied in the background during the
first batches, or when the first request comes. Entries that are sealed or merged later are added. The copy is in the
order of the ids. In the table, an entry has the messages of a time, which may have any offsets. Each id takes 12 bytes,
and each entry 33.

A Delta partition with metadata is written once and removed whole, so the copy of one never changes. There are tens of
thousands of them in a large table. So many of them share a file, and the driver's memory has a kilobyte for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.buckets.bucket_table import BucketTable
from state.index.locate import LOCATED_SCHEMA, offsets_of
from state.message_ids import Ids, by_source
from streaming.job.requests.local_file import Array, LocalFile, room_of
from streaming.job.requests.runs import Numbers, Source, ranges

_CLOSE_S = 5.0
# A new file begins after about so many bytes.
_FILE_BYTES = 1 << 28
# The columns of an index entry that do not follow from its place.
_ENTRY = np.dtype(
    [*((name, np.int64) for name in ("bucket", "from_ms", "until_ms", "max_deliver_at_ms")), ("repeats", np.bool_)]
)


class _Columns(NamedTuple):
    """Some index entries of one Delta partition, and the ids that they have.

    The ids are in the order of their input partitions, which are numbers here, and of their offsets.

    - `sources`, `bounds`: the input partitions, the place of the first id of each, and the number of ids
    - `offsets`, `of_entry`: the offset of each id, and the number of its entry
    - `entries`: the entries (`_ENTRY`)
    """

    sources: Array
    bounds: Array
    offsets: Array
    of_entry: Array
    entries: Array

    def find(self, numbers: Array, wanted: Sequence[Numbers]) -> Iterator[tuple[int, Array, Array]]:
        """Yield the `wanted` ids that are there: the index in `numbers`, the offsets, and the entry of each.

        `wanted` has the offsets of each input partition in `numbers`. Both are in ascending order.
        """
        places = np.searchsorted(self.sources, numbers)
        for at in np.flatnonzero(self.sources.take(places, mode="clip") == numbers).tolist():
            first, end = self.bounds[places[at] : places[at] + 2].tolist()
            own = self.offsets[first:end]
            begins = np.searchsorted(own, wanted[at])
            counts = np.searchsorted(own, wanted[at], side="right") - begins
            if counts.any():
                chosen = first + ranges(begins, counts)
                yield at, self.offsets[chosen], self.entries[self.of_entry[chosen]]


class _Piece(NamedTuple):
    """Such columns, in a file."""

    file: LocalFile
    columns: _Columns

    @property
    def nbytes(self) -> int:
        """How many bytes of the file it takes."""
        return sum(map(room_of, self.columns))


class SealedIds:
    """The ids in the table of sealed buckets. Any thread may use it."""

    def __init__(self, store: BucketTable, file_bytes: int = _FILE_BYTES) -> None:
        """Take the table. Nothing is read yet."""
        self._store, self._file_bytes = store, file_bytes
        # By Delta partition.
        self._pieces: dict[str, list[_Piece]] = {}
        # The file with the newest pieces, and the numbers of input partitions.
        self._file: LocalFile | None = None
        self._numbers: dict[Source, int] = {}
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
            return self._found(ids, before_bucket, from_ms)

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
            self._finish_file()
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
                    self._pieces.setdefault(part, []).append(self._written(self._columns_of(own)))
            self._copied |= missing
        self._free()
        self._version = version

    def _columns_of(self, entries: pa.Table) -> _Columns:
        """Take a table of `ENTRY_SCHEMA`."""
        offsets, lengths = offsets_of(entries)
        firsts, of_entry = np.cumsum(lengths) - lengths, np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
        rows_of = {self._numbers.setdefault(source, len(self._numbers)): rows for source, rows in by_source(entries)}
        ordered = []
        for _, rows in sorted(rows_of.items()):
            at = ranges(firsts[rows], lengths[rows])
            # If an input topic was created again, two messages may have the same id.
            ordered.append(at[np.argsort(offsets[at])])
        bounds = np.cumsum([0, *map(len, ordered)])
        at = np.concatenate(ordered)
        stored = np.empty(len(lengths), dtype=_ENTRY)
        for name in _ENTRY.names or ():
            stored[name] = entries.column(name).to_numpy()
        return _Columns(np.array(sorted(rows_of)), bounds, offsets[at], of_entry[at], stored)

    def _written(self, columns: _Columns) -> _Piece:
        """Write columns to the newest file, or to a new one. Raises StorageFailed."""
        nbytes = sum(map(room_of, columns))
        if self._file is None or not self._file.has_room(nbytes):
            self._finish_file()
            self._file = LocalFile(max(self._file_bytes, nbytes))
        return _Piece(self._file, _Columns(*map(self._file.append, columns)))

    def _free(self) -> None:
        """Write the pieces again that are left of a file if others took more than half of it. So the file vanishes."""
        left: Counter[LocalFile] = Counter()
        for own in self._pieces.values():
            for piece in own:
                left[piece.file] += piece.nbytes
        sparse = {file for file, nbytes in left.items() if file is not self._file and 2 * nbytes < file.end}
        for own in self._pieces.values() if sparse else ():
            own[:] = [self._written(piece.columns) if piece.file in sparse else piece for piece in own]

    def _finish_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _found(self, ids: Ids, before_bucket: int, from_ms: int) -> pa.Table:
        known = sorted((self._numbers[source], source) for source in ids.keys() & self._numbers.keys())
        numbers, wanted = np.array([number for number, _ in known], np.int64), [ids[source] for _, source in known]
        found = [
            (part, *known[at][1], offsets, entries)
            for part, own in self._pieces.items()
            for piece in own
            for at, offsets, entries in piece.columns.find(numbers, wanted)
        ]
        for file in {piece.file for own in self._pieces.values() for piece in own}:
            file.let_go()
        if not found:
            return LOCATED_SCHEMA.empty_table()
        parts, topics, partitions, several_offsets, several_entries = zip(*found, strict=True)
        rows = pa.array(np.repeat(np.arange(len(found)), [len(each) for each in several_offsets]))
        of_rows = pa.table({"part": parts, "topic": topics, "partition": partitions}).take(rows)
        entries = np.concatenate(several_entries)
        columns = {name: np.ascontiguousarray(entries[name]) for name in _ENTRY.names or ()}
        columns["offset"] = np.concatenate(several_offsets)
        waits = (columns["bucket"] < before_bucket) & (columns["max_deliver_at_ms"] >= from_ms)
        for name in ("bucket", "from_ms", "until_ms", "repeats", "offset"):
            of_rows = of_rows.append_column(name, pa.array(columns[name]))
        return of_rows.select(LOCATED_SCHEMA.names).cast(LOCATED_SCHEMA).filter(pa.array(waits))
