"""The counters of a forwarder since its start, for its metrics."""

from __future__ import annotations

from collections import Counter


class ForwardCounts:
    """Counts by lane. Each lane is counted by one thread at a time; any thread may read.

    - `taken`: messages that were staged without a batch
    - `claimed_ms`: when the newest claim was committed (epoch ms)
    """

    def __init__(self) -> None:
        self.taken: Counter[int] = Counter()
        self.claimed_ms: dict[int, int] = {}

    def claimed(self, lane: int, taken: int, at_ms: int) -> None:
        """Count a committed claim that takes so many messages."""
        self.taken[lane] += taken
        self.claimed_ms[lane] = at_ms
