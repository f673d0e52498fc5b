"""Figures from the job's log."""

from __future__ import annotations

import re


def sealed_messages(log: str) -> int:
    """Return how many messages the batches in `log` sealed."""
    return sum(int(count) for count in re.findall(r", sealed (\d+) messages in \d+ segments, ", log))
