"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_POLL_S, _LONGEST_POLL_S = 0.02, 0.5
# Tests state their deadlines for an idle machine. A busy one, such as a CI runner, may take this many times as long.
PATIENCE = 3.0


def assert_eventually(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "the condition") -> T:
    """Return the first true value of `condition`; fail if it stays false for `PATIENCE` times `timeout_s`."""
    timeout_s *= PATIENCE
    deadline_s = time.monotonic() + timeout_s
    while True:
        asked_s = time.monotonic()
        if value := condition():
            return value
        answered_s = time.monotonic()
        if answered_s > deadline_s:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last: {value!r}")
        # A condition that asks a broker takes a while, and should leave the machine to the processes that it waits for.
        time.sleep(min(max(_POLL_S, 2 * (answered_s - asked_s)), _LONGEST_POLL_S))
