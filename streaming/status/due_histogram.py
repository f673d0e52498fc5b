"""How many messages are due when: exact counts by known due times, and estimates by ticks of the index."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from state.index.due_counts import DueCounts, time_slot


class DueHistogram:
    """How many messages are due in each span between `edges_ms`: below the first, ..., from the last on.

    Only a tick with messages on both sides of an edge leaves a count open. Its messages are taken to be spread
    evenly, and the histogram is an estimate then; its sum stays exact.
    """

    def __init__(self, edges_ms: Iterable[int]) -> None:
        self._edges = np.array(sorted(edges_ms), dtype=np.int64)
        self._below = np.zeros(len(self._edges), dtype=np.int64)
        self._total = 0
        self.estimated = False

    @property
    def edges_ms(self) -> list[int]:
        """Where one span ends and the next begins, epoch ms, ascending."""
        edges_ms: list[int] = self._edges.tolist()
        return edges_ms

    @property
    def counts(self) -> list[int]:
        """One count more than there are edges."""
        counts: list[int] = np.diff(self._below, prepend=0, append=self._total).tolist()
        return counts

    def cuts(self, first_ms: int, last_ms: int) -> bool:
        """Say whether an edge lies between what is due at `first_ms` and what is due at `last_ms`."""
        first, last = np.searchsorted(self._edges, [first_ms, last_ms], side="right")
        return bool(first < last)

    def add_instants(self, dues_ms: np.ndarray) -> None:
        """Count messages of which each due time is known; ascending."""
        self._below += np.searchsorted(dues_ms, self._edges, side="left")
        self._total += len(dues_ms)

    def add_uncut(self, due_ms: int, count: int) -> None:
        """Count `count` messages that no edge parts from `due_ms`."""
        self._below[np.searchsorted(self._edges, due_ms, side="right") :] += count
        self._total += count

    def add_slots(self, counts: DueCounts, first_ms: int, last_ms: int) -> None:
        """Count what `counts` holds: messages due in [first_ms, last_ms], one of them at each bound."""
        self._below += [self._before(edge_ms, counts, first_ms, last_ms) for edge_ms in self.edges_ms]
        self._total += len(counts)

    def _before(self, edge_ms: int, counts: DueCounts, first_ms: int, last_ms: int) -> int:
        if not first_ms < edge_ms <= last_ms:
            return 0 if edge_ms <= first_ms else len(counts)
        bounds = counts.before(edge_ms)
        if bounds.exact:
            return bounds.low
        cut = time_slot(edge_ms >> counts.precision_bits, counts.precision_bits)
        start_ms, end_ms = max(cut.start_ms, first_ms), min(cut.end_ms, last_ms + 1)
        even = bounds.low + round((bounds.high - bounds.low) * (edge_ms - start_ms) / (end_ms - start_ms))
        # The messages at the bounds are known, if they are of this tick.
        low, high = bounds.low + (cut.start_ms <= first_ms), bounds.high - (last_ms < cut.end_ms)
        self.estimated |= low < high
        return min(max(even, low), high)
