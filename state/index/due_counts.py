"""Counts of messages by time slot, without message ids, for a histogram of waiting messages.

A time slot is the span of due times that differ only in their low `precision_bits` bits, as Pulsar trims timestamps in
its TimeBucket (PR 23611). It is 2^precision_bits ms long, and aligned to its length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.errors import BucketUnreadable

# The most unordered counts, apart from a share of the ordered ones: ordering them costs a pass over all.
_MOST_UNORDERED = 4096


class TimeSlot(NamedTuple):
    """A time slot: the due times in [start_ms, end_ms), epoch ms."""

    start_ms: int
    end_ms: int


class Bounds(NamedTuple):
    """A count that lies between `low` and `high`, both inclusive."""

    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether the count is exact: no end of the range falls inside a slot with messages."""
        return self.low == self.high


class DueCounts:
    """Counts by time slot, and their running sums. Counting never visits a message.

    Adding costs amortised constant time. The first query after a change costs one pass over the slots, each further
    query a binary search.
    """

    def __init__(self, precision_bits: int, most_unordered: int = _MOST_UNORDERED) -> None:
        self.precision_bits = precision_bits
        self._most_unordered = most_unordered
        # The numbers of slots with messages, ascending; and how many messages are due before each, and in all.
        self._slots = np.empty(0, dtype=np.int64)
        self._before = np.zeros(1, dtype=np.int64)
        self._unordered: dict[int, int] = {}
        self._total = 0

    def __len__(self) -> int:
        """The number of messages counted."""
        return self._total

    def add(self, slot_ms: int, count: int) -> None:
        """Add `count` messages to the time slot that begins at `slot_ms`, epoch ms.

        Raises BucketUnreadable if no slot of this precision begins there, or `count` is below 1.
        """
        number = slot_number(slot_ms, self.precision_bits)
        if count < 1:
            raise BucketUnreadable(
                f"the time slot at {slot_ms} ms is stored with a count of {count}, although empty slots are "
                "not stored: the metadata is damaged"
            )
        self._add_to_slot(number, count)

    def add_instants(self, deliver_at_ms: np.ndarray) -> None:
        """Add messages by their due times: epoch ms, in any order."""
        for number, count in zip(*_counted(deliver_at_ms >> self.precision_bits), strict=True):
            self._add_to_slot(number, count)

    def before(self, instant_ms: int) -> Bounds:
        """Return how many messages are due before `instant_ms`, epoch ms; exact if a slot begins there."""
        self._sort_slots()
        number = instant_ms >> self.precision_bits
        low = high = int(self._before[np.searchsorted(self._slots, number)])
        if instant_ms != number << self.precision_bits:
            high = int(self._before[np.searchsorted(self._slots, number, side="right")])
        return Bounds(low, high)

    def between(self, start_ms: int, end_ms: int) -> Bounds:
        """Return how many messages are due in [start_ms, end_ms), epoch ms.

        `low` counts the slots inside the range, `high` all slots that it touches.
        """
        if end_ms <= start_ms:
            return Bounds(0, 0)
        start, end = self.before(start_ms), self.before(end_ms)
        # Both ends may fall inside the same slot: all of its messages are then possible, and none is certain.
        return Bounds(max(0, end.low - start.high), end.high - start.low)

    def next_due(self) -> TimeSlot | None:
        """Return the earliest slot with messages, or None if nothing is counted."""
        self._sort_slots()
        return time_slot(int(self._slots[0]), self.precision_bits) if len(self._slots) else None

    def forget_before(self, cutoff_ms: int) -> int:
        """Drop the slots that end at or before `cutoff_ms`, epoch ms, and return how many messages they counted."""
        self._sort_slots()
        dropped = int(np.searchsorted(self._slots, cutoff_ms >> self.precision_bits))
        count = int(self._before[dropped])
        # Copies: a view would keep the dropped slots in memory.
        self._slots, self._before = self._slots[dropped:].copy(), self._before[dropped:] - count
        self._total -= count
        return count

    def _add_to_slot(self, number: int, count: int) -> None:
        self._unordered[number] = self._unordered.get(number, 0) + count
        self._total += count
        if len(self._unordered) > self._most_unordered + len(self._slots) // 4:
            self._sort_slots()

    def _sort_slots(self) -> None:
        """Merge the unordered counts into the ordered ones."""
        if not self._unordered:
            return
        slots = np.concatenate((self._slots, np.fromiter(self._unordered.keys(), np.int64)))
        counts = np.concatenate((np.diff(self._before), np.fromiter(self._unordered.values(), np.int64)))
        order = np.argsort(slots, kind="stable")
        self._slots, firsts = np.unique(slots[order], return_index=True)
        self._before = np.concatenate(([0], np.cumsum(np.add.reduceat(counts[order], firsts))))
        self._unordered = {}


def _counted(numbers: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the distinct `numbers`, and how often each occurs."""
    if not len(numbers):
        return [], []
    first = numbers.min()
    if numbers.max() - first < 4 * len(numbers):
        # Usually many messages share a slot: counting in place takes a tenth of the time of sorting.
        counts = np.bincount(numbers - first)
        present = np.flatnonzero(counts)
        return (present + first).tolist(), counts[present].tolist()
    distinct, counts = np.unique(numbers, return_counts=True)
    return distinct.tolist(), counts.tolist()


def time_slot(number: int, precision_bits: int) -> TimeSlot:
    """Return the time slot with this number."""
    return TimeSlot(number << precision_bits, number + 1 << precision_bits)


def slot_number(slot_ms: int, precision_bits: int) -> int:
    """Return the number of the slot that begins at `slot_ms`. Raises BucketUnreadable if no slot does."""
    number = slot_ms >> precision_bits
    if number << precision_bits != slot_ms:
        raise BucketUnreadable(
            f"no time slot of {1 << precision_bits} ms begins at {slot_ms} ms: the metadata is damaged, or "
            f"was not written with {precision_bits} precision bits"
        )
    return number
