"""How many messages are due in each tick: all that a histogram of what waits needs, and no message id.

A tick is the span of due times that differ in their low `precision_bits` bits only, as Pulsar trims timestamps
in its TimeBucket (PR 23611): 2^precision_bits ms long, and aligned to that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.errors import BucketUnreadable

# Counts that are not in order yet, beyond a share of those that are: putting them in order costs a pass over all.
_MOST_UNORDERED = 4096


class TimeSlot(NamedTuple):
    """When something is due, to precision: in [start_ms, end_ms), epoch ms."""

    start_ms: int
    end_ms: int


class Bounds(NamedTuple):
    """A count that lies between `low` and `high`, both included."""

    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether the count is known: no tick with messages is cut by an end of the range."""
        return self.low == self.high


class DueCounts:
    """Counts by tick, and their sums. Counting never visits a message.

    Adding costs amortised constant time. The first question after a change costs one pass over the ticks, each
    further one a binary search.
    """

    def __init__(self, precision_bits: int) -> None:
        self.precision_bits = precision_bits
        # Numbers of the ticks that hold something, ascending, and how many are due before each and after the last.
        self._slots = np.empty(0, dtype=np.int64)
        self._before = np.zeros(1, dtype=np.int64)
        self._unordered: dict[int, int] = {}
        self._total = 0

    def __len__(self) -> int:
        """How many are counted."""
        return self._total

    def add(self, slot_ms: int, count: int) -> None:
        """Count `count` more in the tick that begins at `slot_ms`, epoch ms.

        Raises `BucketUnreadable` where no tick of this precision begins there, or nothing is counted.
        """
        number = slot_number(slot_ms, self.precision_bits)
        if count < 1:
            raise BucketUnreadable(
                f"the tick at {slot_ms} ms is stored with a count of {count}; only ticks with messages are: "
                f"the metadata is damaged"
            )
        self._put(number, count)

    def add_instants(self, deliver_at_ms: np.ndarray) -> None:
        """Count messages by their due times: epoch ms, in any order."""
        for number, count in zip(*_counted(deliver_at_ms >> self.precision_bits), strict=True):
            self._put(number, count)

    def before(self, instant_ms: int) -> Bounds:
        """Return how many are due before `instant_ms`, epoch ms; exact where a tick begins there."""
        self._order()
        number = instant_ms >> self.precision_bits
        low = high = int(self._before[np.searchsorted(self._slots, number)])
        if instant_ms != number << self.precision_bits:
            high = int(self._before[np.searchsorted(self._slots, number, side="right")])
        return Bounds(low, high)

    def between(self, start_ms: int, end_ms: int) -> Bounds:
        """Return how many are due in [start_ms, end_ms), epoch ms: `low` in ticks inside, `high` in all it touches."""
        if end_ms <= start_ms:
            return Bounds(0, 0)
        start, end = self.before(start_ms), self.before(end_ms)
        # Both ends may cut the same tick, which then holds all that is in question and nothing that is certain.
        return Bounds(max(0, end.low - start.high), end.high - start.low)

    def next_due(self) -> TimeSlot | None:
        """Return the earliest tick that holds something, or None when nothing is counted."""
        self._order()
        return time_slot(int(self._slots[0]), self.precision_bits) if len(self._slots) else None

    def forget_before(self, cutoff_ms: int) -> int:
        """Drop the ticks that end at or before `cutoff_ms`, epoch ms, and return how many they counted."""
        self._order()
        gone = int(np.searchsorted(self._slots, cutoff_ms >> self.precision_bits))
        count = int(self._before[gone])
        # Copies: a view would keep what is forgotten in memory.
        self._slots, self._before = self._slots[gone:].copy(), self._before[gone:] - count
        self._total -= count
        return count

    def _put(self, number: int, count: int) -> None:
        self._unordered[number] = self._unordered.get(number, 0) + count
        self._total += count
        if len(self._unordered) > _MOST_UNORDERED + len(self._slots) // 4:
            self._order()

    def _order(self) -> None:
        """Merge what was added into the ordered ticks."""
        if not self._unordered:
            return
        slots = np.concatenate((self._slots, np.fromiter(self._unordered.keys(), np.int64)))
        counts = np.concatenate((np.diff(self._before), np.fromiter(self._unordered.values(), np.int64)))
        order = np.argsort(slots, kind="stable")
        self._slots, firsts = np.unique(slots[order], return_index=True)
        self._before = np.concatenate(([0], np.cumsum(np.add.reduceat(counts[order], firsts))))
        self._unordered = {}


def _counted(numbers: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the distinct ones of `numbers`, and how often each is there."""
    if not len(numbers):
        return [], []
    first = numbers.min()
    if numbers.max() - first < 4 * len(numbers):
        # Many to a tick, as a rule: counting them in place takes a tenth of the time of sorting them.
        counts = np.bincount(numbers - first)
        present = np.flatnonzero(counts)
        return (present + first).tolist(), counts[present].tolist()
    distinct, counts = np.unique(numbers, return_counts=True)
    return distinct.tolist(), counts.tolist()


def time_slot(number: int, precision_bits: int) -> TimeSlot:
    """Return when the tick of that number begins and ends."""
    return TimeSlot(number << precision_bits, number + 1 << precision_bits)


def slot_number(slot_ms: int, precision_bits: int) -> int:
    """Return the number of the tick that begins at `slot_ms`, or raise `BucketUnreadable` where none does."""
    number = slot_ms >> precision_bits
    if number << precision_bits != slot_ms:
        raise BucketUnreadable(
            f"no tick of {1 << precision_bits} ms begins at {slot_ms} ms: the metadata was written with another "
            f"precision than {precision_bits} bits, or is damaged"
        )
    return number
