"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.02
# Tests state their deadlines for an idle machine. A busy one, such as that of CI, may take this many times as long.
PATIENCE = 3.0


def assert_eventually(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "the condition") -> T:
    """Return the first true value of `condition`; fail if there is none within `PATIENCE` times `timeout_s`."""
    timeout_s *= PATIENCE
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last: {value!r}")
        time.sleep(_POLL_S)
    return value
