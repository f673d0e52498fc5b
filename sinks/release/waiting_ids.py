"""Finds ids in waiting chunks: a few searches for each chunk, from however many input partitions it comes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from state.message_ids import NO_IDS, Ids, are_in

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChunkIds:
    """The ids of a chunk, as numbers that ascend by source and offset.

    `sources` has the number of each source, ascending; `lowest` and `highest` its first and last offset; and `firsts`
    the number of its first id. The others of a source follow at the distance of their offsets.
    """

    sources: _Numbers
    lowest: _Numbers
    highest: _Numbers
    firsts: _Numbers
    numbers: _Numbers

    def among(self, sources: _Numbers, offsets: _Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the ids with these numbers of `sources`, and `offsets`, the chunk has."""
        if not len(self.sources):
            return np.zeros(len(offsets), dtype=bool)
        at = np.minimum(np.searchsorted(self.sources, sources), len(self.sources) - 1)
        found = (self.sources[at] == sources) & (self.lowest[at] <= offsets) & (offsets <= self.highest[at])
        # Most chunks have none.
        if found.any():
            at = at[found]
            found[found] = are_in(self.numbers, self.firsts[at] + (offsets[found] - self.lowest[at]))
        return np.asarray(found)


class WaitingIds:
    """Looks up ids in waiting chunks. Gives each source, (topic, partition), a number, for NumPy to search."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}

    @property
    def is_used(self) -> bool:
        """Whether the ids of any chunk were looked at, which the first request needs."""
        return bool(self._numbers)

    def of_chunk(self, ids: Ids) -> ChunkIds:
        """Return the `ids` of a chunk for the search."""
        own = {self._numbers.setdefault(source, len(self._numbers)): offsets for source, offsets in ids.items()}
        sources = sorted(own)
        lowest, highest = (np.array([own[source][end] for source in sources], dtype=np.int64) for end in (0, -1))
        counts = [len(own[source]) for source in sources]
        # Offsets are Kafka's own here, and so far below 2^63 that the sum of all is as well.
        spans = highest - lowest + 1
        firsts = np.cumsum(spans) - spans
        offsets = np.concatenate([np.zeros(0, np.int64), *(own[source] for source in sources)])
        numbers = offsets + np.repeat(firsts - lowest, counts)
        return ChunkIds(np.array(sources, dtype=np.int64), lowest, highest, firsts, numbers)

    def common(self, chunks: Iterable[ChunkIds], wanted: Ids) -> Ids:
        """Return the `wanted` ids that one of `chunks` has."""
        # Most sources in requests of strangers have no message here.
        known = {source: offsets for source, offsets in wanted.items() if source in self._numbers}
        if not known:
            return NO_IDS
        offsets, counts = np.concatenate([*known.values()]), [len(own) for own in known.values()]
        sources = np.repeat([self._numbers[source] for source in known], counts)
        found = np.zeros(len(offsets), dtype=bool)
        for chunk in chunks:
            found |= chunk.among(sources, offsets)
        own = np.split(found, np.cumsum(counts)[:-1])
        return {source: known[source][rows] for source, rows in zip(known, own, strict=True) if rows.any()}
