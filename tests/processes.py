"""Whether a process has ended."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process) -> bool:
    """Return whether `process` still runs. A zombie, which nobody has waited for yet, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
