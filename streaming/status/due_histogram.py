"""A histogram of due times: exact counts from known due times, estimates from the index's time slots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from state.index.due_counts import DueCounts, time_slot


class DueHistogram:
    """The number of messages due in each span between `edges_ms`: below the first, ..., from the last on.

    The counts are exact unless an edge falls inside a time slot with messages on both sides. The histogram then assumes
    that the slot's messages are evenly spread, and is an estimate; its total stays exact.
    """

    def __init__(self, edges_ms: Iterable[int]) -> None:
        self._edges = np.array(sorted(edges_ms), dtype=np.int64)
        self._below = np.zeros(len(self._edges), dtype=np.int64)
        self._total = 0
        self.estimated = False

    @property
    def edges_ms(self) -> list[int]:
        """The instants between spans, epoch ms, ascending."""
        edges_ms: list[int] = self._edges.tolist()
        return edges_ms

    @property
    def counts(self) -> list[int]:
        """The count of each span; one more than there are edges."""
        counts: list[int] = np.diff(self._below, prepend=0, append=self._total).tolist()
        return counts

    def cuts(self, first_ms: int, last_ms: int) -> bool:
        """Return whether messages due at `first_ms` and at `last_ms` fall into different spans."""
        first, last = np.searchsorted(self._edges, [first_ms, last_ms], side="right")
        return bool(first < last)

    def add_instants(self, dues_ms: np.ndarray) -> None:
        """Count one message for each of `dues_ms`, ascending due times."""
        self._below += np.searchsorted(dues_ms, self._edges, side="left")
        self._total += len(dues_ms)

    def add_uncut(self, due_ms: int, count: int) -> None:
        """Count `count` messages that are all due in the same span as `due_ms`."""
        self._below[np.searchsorted(self._edges, due_ms, side="right") :] += count
        self._total += count

    def add_slots(self, counts: DueCounts, first_ms: int, last_ms: int) -> None:
        """Count the messages of `counts`: all due in [first_ms, last_ms], at least one of them at each bound."""
        self._below += [self._before(edge_ms, counts, first_ms, last_ms) for edge_ms in self.edges_ms]
        self._total += len(counts)

    def _before(self, edge_ms: int, counts: DueCounts, first_ms: int, last_ms: int) -> int:
        if not first_ms < edge_ms <= last_ms:
            return 0 if edge_ms <= first_ms else len(counts)
        bounds = counts.before(edge_ms)
        if bounds.exact:
            return bounds.low
        slot = time_slot(edge_ms >> counts.precision_bits, counts.precision_bits)
        start_ms, end_ms = max(slot.start_ms, first_ms), min(slot.end_ms, last_ms + 1)
        estimate = bounds.low + round((bounds.high - bounds.low) * (edge_ms - start_ms) / (end_ms - start_ms))
        # The messages at the bounds have known due times, if they belong to this slot.
        low, high = bounds.low + (slot.start_ms <= first_ms), bounds.high - (last_ms < slot.end_ms)
        self.estimated |= low < high
        return min(max(estimate, low), high)
