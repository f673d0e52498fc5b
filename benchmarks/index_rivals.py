"""The structures that the message-id index is compared with: Pulsar's TimeBucket, and the heap that it replaced."""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from pyroaring import BitMap64
from sortedcontainers import SortedDict

from state.index.due_counts import Bounds, DueCounts, TimeSlot

_Source = tuple[str, int]


class TimeBucket:
    """Time slot -> source -> Roaring bitmap of offsets (Pulsar's PR 23611), extended by counts for each slot."""

    def __init__(self, precision_bits: int) -> None:
        self._due = DueCounts(precision_bits)
        self._slots: SortedDict[int, Any] = SortedDict()

    def __len__(self) -> int:
        return len(self._due)

    def optimise(self) -> None:
        """Run-optimise the bitmaps and free spare memory; called once, after all ids are added."""
        for sources in self._slots.values():
            for offsets in sources.values():
                offsets.run_optimize()
                offsets.shrink_to_fit()

    def __contains__(self, message_id: tuple[str, int, int]) -> bool:
        *source, offset = message_id
        key = tuple(source)
        return any(offset in sources[key] for sources in self._slots.values() if key in sources)

    @property
    def nbytes(self) -> int:
        """Bytes when serialized: the bitmaps, and 8 bytes for each slot and for each source number."""
        return sum(8 + sum(8 + len(each.serialize()) for each in of.values()) for of in self._slots.values())

    def add(self, topic: str, partition: int, offsets: np.ndarray, deliver_at_ms: np.ndarray) -> None:
        """Add ids of one source."""
        source, bits = (topic, partition), self._due.precision_bits
        order = np.argsort(deliver_at_ms >> bits, kind="stable")
        offsets, numbers = offsets[order], (deliver_at_ms >> bits)[order]
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]):
            number = int(numbers[start])
            values = array("Q", offsets[start:end].tobytes())
            sources: dict[_Source, BitMap64] = self._slots.setdefault(number, {})
            known = sources.setdefault(source, BitMap64())
            before = len(known)
            known.update(values)
            if len(known) > before:
                self._due.add(number << bits, len(known) - before)

    def between(self, start_ms: int, end_ms: int) -> Bounds:
        """Count the messages due in [start_ms, end_ms)."""
        return self._due.between(start_ms, end_ms)

    def next_due(self) -> TimeSlot | None:
        """Return the earliest slot."""
        return self._due.next_due()

    def forget_before(self, cutoff_ms: int) -> int:
        """Drop the slots that end at or before `cutoff_ms`."""
        first = cutoff_ms >> self._due.precision_bits
        while self._slots and self._slots.peekitem(0)[0] < first:
            self._slots.popitem(0)
        return self._due.forget_before(cutoff_ms)


class Heap:
    """A binary heap of triples: due time, source and offset."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, _Source, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, message_id: tuple[str, int, int]) -> bool:
        *source, offset = message_id
        key = tuple(source)
        return any(each[2] == offset and each[1] == key for each in self._heap)

    @property
    def nbytes(self) -> int:
        """Bytes in Pulsar's packing: three numbers of 8 bytes for each triple."""
        return 24 * len(self._heap)

    def add(self, topic: str, partition: int, offsets: np.ndarray, deliver_at_ms: np.ndarray) -> None:
        """Add ids of one source."""
        source = (topic, partition)
        for offset, due_ms in zip(offsets.tolist(), deliver_at_ms.tolist(), strict=True):
            heappush(self._heap, (due_ms, source, offset))

    def between(self, start_ms: int, end_ms: int) -> Bounds:
        """Count the messages due in [start_ms, end_ms), by a scan of all triples."""
        count = sum(start_ms <= each[0] < end_ms for each in self._heap)
        return Bounds(count, count)

    def next_due(self) -> TimeSlot | None:
        """Return the earliest due time."""
        return TimeSlot(self._heap[0][0], self._heap[0][0] + 1) if self._heap else None

    def forget_before(self, cutoff_ms: int) -> int:
        """Remove the triples due before `cutoff_ms`, one after the other."""
        before = len(self._heap)
        while self._heap and self._heap[0][0] < cutoff_ms:
            heappop(self._heap)
        return before - len(self._heap)
