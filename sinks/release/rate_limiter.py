"""A limit on the rate at which a shard delivers."""

from __future__ import annotations

import time


class RateLimiter:
    """Limits delivery to `per_second` messages a second, on average over committed messages; 0 means no limit.

    Unused capacity is not saved up: after a pause the rate is the same.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at_s = 0.0

    def most_at_once(self, messages: int) -> int:
        """Return how many of `messages` may go together, so that a subscriber has no more than a second's worth."""
        return min(messages, max(1, int(self._per_second))) if self._per_second else messages

    def wait(self) -> None:
        """Wait for the turn of the next message."""
        if self._per_second:
            time.sleep(max(0.0, self._free_at_s - time.monotonic()))

    def spend(self, messages: int) -> None:
        """Count messages that are committed now."""
        if self._per_second:
            self._free_at_s = max(self._free_at_s, time.monotonic()) + messages / self._per_second
