"""Telling what a benchmark does now, and waiting for what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable


def say(text: str) -> None:
    """Tell what the benchmark does now."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, check: Callable[[], None]) -> None:
    """Wait for `condition`. Raises TimeoutError, and what `check` raises when waiting has become pointless."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)
