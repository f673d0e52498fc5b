"""Whether a process has ended."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process) -> bool:
    """Say whether `process` has not ended; one that nobody has waited for yet has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
