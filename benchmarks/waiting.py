"""Printing the progress of a benchmark, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def say(text: str) -> None:
    """Print what the benchmark does now."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    what: str,
    check: Callable[[], None],
    pause_s: Callable[[], float] = lambda: 0.05,
) -> None:
    """Wait for `condition`, and `pause_s` between two looks at it.

    Raises TimeoutError, and what `check` raises when waiting has become pointless.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(pause_s())
