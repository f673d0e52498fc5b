"""Large sets of ids, in files on the driver's local disk: runs in the order of the ids.

Log-structured, as the table is: what a batch cancels becomes a run, and runs of like size become one. A B-tree reads
and writes a page for nearly every id, since ids come at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.message_ids import Ids, by_source
from streaming.job.requests.id_file import IdFile, Source

# How many ids are merged at once: each takes 24 bytes, a few times over.
_AT_ONCE = 1 << 18
Numbers = npt.NDArray[np.int64]


class _Columns(NamedTuple):
    """What is known of some ids of one source: the offset, the last due time (epoch ms), and a number.

    That is the bucket of the batch that cancelled it, or the partition of the record that says it was recalled.
    """

    offsets: Numbers
    dues: Numbers
    buckets: Numbers

    def of(self, rows: slice | npt.NDArray[np.bool_] | Numbers) -> _Columns:
        return _Columns(*(column[rows] for column in self))


class _Run(IdFile):
    """Ids in a file, with `_Columns` of each."""

    def __init__(self, several: Iterable[tuple[Source, _Columns]], capacity: int) -> None:
        super().__init__(several, capacity, [np.int64] * len(_Columns._fields))

    def of(self, source: Source) -> _Columns:
        return _Columns(*self.columns_of(source))


class IdRuns:
    """Sets of ids that grow. Not thread-safe."""

    def __init__(self) -> None:
        """Know no id."""
        self._runs: list[_Run] = []

    def add(self, ids: pa.Table) -> None:
        """Add `ids`: the columns `ID`, max_deliver_at_ms and bucket. Each may be there already, and be there twice."""
        if not ids.num_rows:
            return
        every = _Columns(*(ids.column(name).to_numpy() for name in ("offset", "max_deliver_at_ms", "bucket")))
        by_id = ((source, _in_order([every.of(rows)])) for source, rows in by_source(ids))
        self._runs.append(_Run(by_id, ids.num_rows))
        while len(self._runs) > 1 and self._runs[-2].count <= 2 * self._runs[-1].count:
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(_Run(_merged(older, newer), older.count + newer.count))

    def buckets_of(self, ids: Ids) -> dict[Source, tuple[Numbers, Numbers]]:
        """Return by source which of the offsets in `ids` are there, and the last bucket that was added with each."""
        found = {}
        for source, offsets in ids.items():
            buckets = np.full(len(offsets), -1, dtype=np.int64)
            for run in self._runs:
                own = run.of(source)
                if len(own.offsets):
                    at = np.minimum(np.searchsorted(own.offsets, offsets), len(own.offsets) - 1)
                    same = own.offsets[at] == offsets
                    buckets[same] = np.maximum(buckets[same], own.buckets[at[same]])
            if (known := buckets >= 0).any():
                found[source] = offsets[known], buckets[known]
        self._let_go()
        return found

    def every(self) -> Iterator[tuple[Source, Numbers, Numbers]]:
        """Yield the offsets of all ids by source, some at a time, and the bucket of each.

        An id comes as often as it was added.
        """
        for run in self._runs:
            for source in run.sources:
                for some in _pieces(run.of(source)):
                    yield source, some.offsets, some.buckets
        self._let_go()

    def old(self, before_ms: int, old_below: Mapping[Source, int]) -> Iterator[tuple[Source, Numbers, Numbers]]:
        """Yield by source the offsets of what `forget` would forget, some at a time, and the bucket of each.

        An id comes as often as it was added.
        """
        for run in self._runs:
            for source in run.sources:
                for some in _pieces(run.of(source)):
                    own = some.of(_is_old(some, before_ms, old_below.get(source, 0)))
                    yield source, own.offsets, own.buckets
        self._let_go()

    def forget(self, before_ms: int, old_below: Mapping[Source, int]) -> None:
        """Forget what is due before `before_ms` (epoch ms), and below the offset of its source in `old_below`."""

        def kept(run: _Run) -> Iterator[tuple[Source, _Columns]]:
            for source in run.sources:
                for some in _pieces(run.of(source)):
                    yield source, some.of(~_is_old(some, before_ms, old_below.get(source, 0)))

        for number, run in enumerate(self._runs):
            left = sum(len(some.offsets) for _, some in kept(run))
            if left < run.count:
                self._runs[number] = _Run(kept(run), left)
        self._runs = [run for run in self._runs if run.count]
        self._let_go()

    def _let_go(self) -> None:
        for run in self._runs:
            run.let_go()


def _merged(older: _Run, newer: _Run) -> Iterator[tuple[Source, _Columns]]:
    """Yield the ids of both runs, each once, some at a time."""
    for source in older.sources | newer.sources:
        rest = [older.of(source), newer.of(source)]
        while any(len(each.offsets) for each in rest):
            # Up to where each of the two is known, if it is not cut off.
            last = min(int(each.offsets[:_AT_ONCE][-1]) for each in rest if len(each.offsets))
            ends = [int(np.searchsorted(each.offsets[:_AT_ONCE], last, side="right")) for each in rest]
            yield source, _in_order([each.of(slice(0, end)) for each, end in zip(rest, ends, strict=True)])
            rest = [each.of(slice(end, None)) for each, end in zip(rest, ends, strict=True)]
    for run in (older, newer):
        run.let_go()


def _in_order(several: list[_Columns]) -> _Columns:
    """Return the ids by offset, each once: as it was added with the last bucket."""
    every = _Columns(*map(np.concatenate, zip(*several, strict=True)))
    ordered = every.of(np.lexsort((every.buckets, every.offsets)))
    is_last = np.append(ordered.offsets[1:] != ordered.offsets[:-1], [True] * min(1, len(ordered.offsets)))
    return ordered.of(is_last.astype(bool))


def _is_old(columns: _Columns, before_ms: int, old_below: int) -> npt.NDArray[np.bool_]:
    return np.asarray((columns.dues < before_ms) & (columns.offsets < old_below))


def _pieces(columns: _Columns) -> Iterator[_Columns]:
    for first in range(0, len(columns.offsets), _AT_ONCE):
        yield columns.of(slice(first, first + _AT_ONCE))
