"""The clock of the host that delivers. It can only delay messages (invariant 4)."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time of the host's clock, epoch ms."""
    return time.time_ns() // 1_000_000


def wait_until(instant_ms: int, longest_ms: int | None = None) -> bool:
    """Wait until the host's clock shows `instant_ms` (epoch ms). Return False if that is over `longest_ms` away.

    The only place where the wall clock matters.
    """
    while (early_ms := instant_ms - now_ms()) > 0:
        if longest_ms is not None and early_ms > longest_ms:
            return False
        # In short pieces, since the clock may be set meanwhile.
        time.sleep(min(early_ms / 1000, 1.0))
    return True
