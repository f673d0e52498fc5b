"""The clock of the host that delivers. It can only delay messages (invariant 4)."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time of the host's clock, epoch ms."""
    return time.time_ns() // 1_000_000
