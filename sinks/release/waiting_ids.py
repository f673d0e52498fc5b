"""Finds ids in waiting chunks: a comparison for each chunk and input partition, and a search where it may have some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def contains_mask(self, sources: _Numbers, offsets: _Numbers) -> npt.NDArray[np.bool_]:
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

    def may_have(self, chunks: Sequence[ChunkIds], wanted: Ids) -> list[int]:
        """Return the indices of the `chunks` that have a `wanted` id between the first and the last of a source.

        All chunks are compared together: forwarders stage thousands of small ones, of which few have one.
        """
        known = self._known(wanted)
        if not known or not chunks:
            return []
        owners = np.repeat(np.arange(len(chunks)), [len(each.sources) for each in chunks])
        sources = np.concatenate([each.sources for each in chunks])
        by_source = np.argsort(sources, kind="stable")
        numbers = [self._numbers[source] for source in known]
        starts, ends = (np.searchsorted(sources[by_source], numbers, side) for side in ("left", "right"))
        lowest, highest = (np.concatenate(each) for each in zip(*((c.lowest, c.highest) for c in chunks), strict=True))
        may = np.zeros(len(owners), dtype=bool)
        for offsets, start, end in zip(known.values(), starts.tolist(), ends.tolist(), strict=True):
            own = by_source[start:end]
            may[own] = np.searchsorted(offsets, lowest[own]) < np.searchsorted(offsets, highest[own], "right")
        return list(np.unique(owners[may]).tolist())

    def common(self, chunks: Iterable[ChunkIds], wanted: Ids) -> Ids:
        """Return the `wanted` ids that one of `chunks` has."""
        known, chunks = self._known(wanted), list(chunks)
        if not known:
            return NO_IDS
        offsets, counts = np.concatenate([*known.values()]), [len(own) for own in known.values()]
        sources = np.repeat([self._numbers[source] for source in known], counts)
        found = np.zeros(len(offsets), dtype=bool)
        for at in self.may_have(chunks, known):
            found |= chunks[at].contains_mask(sources, offsets)
        own = np.split(found, np.cumsum(counts)[:-1])
        return {source: known[source][rows] for source, rows in zip(known, own, strict=True) if rows.any()}

    def _known(self, wanted: Ids) -> Ids:
        """Return the `wanted` ids without the sources, as of most requests by strangers, that no chunk has."""
        return {source: offsets for source, offsets in wanted.items() if source in self._numbers}
