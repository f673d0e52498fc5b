"""Rows of numbers on the driver's local disk: ids and names, of which there are too many for its memory.

A *run* is a file of rows that never changes. Its rows are grouped by source, in the order of their numbers. A set of
runs is log-structured, as the table is: new rows become a run, and runs of like size become one. A B-tree reads and
writes a page for nearly every row, since ids and hashes come at random.

The rows are derived data, and no batch needs them after a crash. So the files have no name, and vanish with the
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.kinds import Mask
from state.message_ids import by_source
from streaming.job.requests.local_file import LocalFile

# Topic and number of an input partition.
Source = tuple[str, int]
Numbers = npt.NDArray[np.int64]
# Arrays of one length: the first, second, … number of each row.
Columns = Sequence[npt.NDArray[Any]]
# The same as a `NamedTuple`.
Rows = TypeVar("Rows", bound=Columns)
# How many rows are read or merged at once: some tens of bytes each, a few times over.
_PIECE_ROWS = 1 << 18


class Run:
    """Rows in a file, not kept in memory.

    `count` is how many rows there are, and `sources` has the first row of each source and the row after its last.
    """

    def __init__(
        self, several: Iterable[tuple[Source, Columns]], capacity: int, kinds: Sequence[npt.DTypeLike]
    ) -> None:
        """Write at most `capacity` rows with numbers of these `kinds`.

        The rows of a source come one after the other, in ascending order of their first numbers. Raises StorageFailed.
        """
        self.sources: dict[Source, tuple[int, int]] = {}
        self.count = 0
        types = [np.dtype(kind) for kind in kinds]
        # Each column begins at a multiple of eight bytes.
        room = -(-max(1, capacity) // 8) * 8
        begins = np.cumsum([0, *(each.itemsize * room for each in types)]).tolist()
        self.file = LocalFile(begins[-1])
        with closing(self.file):
            for source, columns in several:
                for begin, kind, column in zip(begins, types, columns, strict=False):
                    self.file.write(column.astype(kind), begin + kind.itemsize * self.count)
                first = self.sources.get(source, (self.count, 0))[0]
                self.count += len(columns[0])
                self.sources[source] = first, self.count
        self._columns = [self.file.array(kind, self.count, begin) for begin, kind in zip(begins, types, strict=False)]

    def rows_of(self, source: Source) -> Columns:
        """Return the rows of one source."""
        rows = slice(*self.sources.get(source, (0, 0)))
        return [column[rows] for column in self._columns]

    def pieces(self, rows: int) -> Iterator[tuple[Source, Columns]]:
        """Yield all rows by source, at most `rows` at a time."""
        for source in self.sources:
            columns = self.rows_of(source)
            for first in range(0, len(columns[0]), rows):
                yield source, chosen(columns, slice(first, first + rows))
        self.file.let_go()

    def find(self, wanted: Mapping[Source, npt.NDArray[Any]]) -> Iterator[tuple[Source, Columns]]:
        """Yield by source the rows with a first number in `wanted`, which is in ascending order."""
        for source in wanted.keys() & self.sources.keys():
            columns, numbers = self.rows_of(source), wanted[source]
            firsts = np.searchsorted(columns[0], numbers)
            counts = np.searchsorted(columns[0], numbers, side="right") - firsts
            if counts.any():
                yield source, chosen(columns, ranges(firsts, counts))
        self.file.let_go()


class Runs(Generic[Rows]):
    """A growing set of rows, in runs. Among rows with the same key, the greatest counts. Not thread-safe."""

    def __init__(
        self,
        named: Callable[..., Rows],
        kinds: Sequence[npt.DTypeLike],
        keys: int = 1,
        lasting: int | None = None,
        piece_rows: int = _PIECE_ROWS,
    ) -> None:
        """Start without rows. The numbers of a row are of these `kinds`, and the first `keys` of them are its key.

        `named` gives the columns their names. `lasting` is the index of a column, if there is one, in which the row
        that counts has the greatest number of all rows with its key.
        """
        self._named = named
        self._kinds = kinds
        self._keys = keys
        self._lasting = lasting
        self._piece_rows = piece_rows
        self._runs: list[Run] = []

    def add(self, several: Iterable[tuple[Source, Columns]]) -> None:
        """Add the rows of each source, in any order. Each may be there already, and be there twice."""
        new = [(source, self._in_order([columns])) for source, columns in several]
        if not (count := sum(len(columns[0]) for _, columns in new)):
            return
        self._runs.append(Run(new, count, self._kinds))
        while len(self._runs) > 1 and self._runs[-2].count <= 2 * self._runs[-1].count:
            older, newer = self._runs[-2:]
            # Both stay if the disk is full.
            self._runs[-2:] = [Run(self._merged(older, newer), older.count + newer.count, self._kinds)]

    def find(self, wanted: Mapping[Source, npt.NDArray[Any]]) -> dict[Source, Rows]:
        """Return by source, in ascending order, the rows with a first number in `wanted`."""
        found: dict[Source, list[Columns]] = {}
        for run in self._runs:
            for source, columns in run.find(wanted):
                found.setdefault(source, []).append(columns)
        return {source: self._named(*self._in_order(several)) for source, several in found.items()}

    def pieces(self) -> Iterator[tuple[Source, Rows]]:
        """Yield all rows by source, some at a time. A row comes as often as it was added."""
        for run in self._runs:
            for source, columns in run.pieces(self._piece_rows):
                yield source, self._named(*columns)

    def forget(self, is_old: Callable[[Source, Rows], Mask], least: float = 0.0) -> None:
        """Forget rows that are old. A run keeps them for now if they are less than the fraction `least` of its rows."""

        def left(run: Run) -> Iterator[tuple[Source, Columns]]:
            for source, columns in run.pieces(self._piece_rows):
                yield source, chosen(columns, ~is_old(source, self._named(*columns)))

        for number, run in enumerate(self._runs):
            pieces = run.pieces(self._piece_rows)
            old = sum(np.count_nonzero(is_old(source, self._named(*columns))) for source, columns in pieces)
            if old and old >= least * run.count:
                self._runs[number] = Run(left(run), run.count - int(old), self._kinds)
        self._runs = [run for run in self._runs if run.count]

    def _merged(self, older: Run, newer: Run) -> Iterator[tuple[Source, Columns]]:
        """Yield the rows of both runs, one of each key, some at a time."""
        for source in older.sources | newer.sources:
            rest = [older.rows_of(source), newer.rows_of(source)]
            while any(len(first) for first, *_ in rest):
                # Up to a number that both are read to, or end before.
                last = min(first[: self._piece_rows][-1] for first, *_ in rest if len(first))
                ends = [int(np.searchsorted(first, last, side="right")) for first, *_ in rest]
                yield source, self._in_order([chosen(each, slice(end)) for each, end in zip(rest, ends, strict=True)])
                rest = [chosen(each, slice(end, None)) for each, end in zip(rest, ends, strict=True)]
        for run in (older, newer):
            run.file.let_go()

    def _in_order(self, several: Sequence[Columns]) -> Columns:
        """Return the rows in ascending order, only the greatest of each key."""
        every = [np.concatenate(each) for each in zip(*several, strict=True)]
        ordered = chosen(every, np.argsort(every[0], kind="stable"))
        is_same = ordered[0][1:] == ordered[0][:-1]
        if not is_same.any():
            return ordered
        ordered = chosen(ordered, np.lexsort(ordered[::-1]))
        is_same = np.logical_and.reduce([column[1:] == column[:-1] for column in ordered[: self._keys]])
        rows = [*chosen(ordered, np.append(~is_same, True))]
        if self._lasting is not None:
            firsts = np.flatnonzero(np.append(True, ~is_same))
            rows[self._lasting] = np.maximum.reduceat(ordered[self._lasting], firsts)
        return rows


def divided(ids: pa.Table, columns: Columns) -> Iterator[tuple[Source, Columns]]:
    """Yield by source the rows that `columns` have for `ids`, a table that has the columns `ID`."""
    for source, rows in by_source(ids):
        yield source, chosen(columns, rows)


def chosen(columns: Columns, rows: slice | Mask | Numbers) -> Columns:
    """Return some of the rows."""
    return [column[rows] for column in columns]


def ranges(firsts: Numbers, counts: Numbers) -> Numbers:
    """Return the numbers of `counts` rows from each of `firsts` on."""
    return np.asarray(np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum()))
