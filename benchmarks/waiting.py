"""Prints the progress of a benchmark, and waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def say(text: str) -> None:
    """Print a line of progress with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    what: str,
    check: Callable[[], None],
    pause_s: Callable[[], float] = lambda: 0.05,
) -> None:
    """Wait until `condition` is true.

    Args:
        condition: what to wait for.
        timeout_s: the longest time to wait; after it, TimeoutError is raised.
        what: the condition's name in that error.
        check: called after each failed test of the condition; raises if waiting has become pointless.
        pause_s: returns the pause between two tests, in seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(pause_s())
