"""SIGKILL and SIGSTOP for a process and all that it started, for failpoints, tests and benchmarks.

Needs psutil, which is installed with the development tools: the service does not import this module.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

import psutil


def kill_tree(root: int) -> None:
    """Send SIGKILL to the process `root` and all its descendants. The caller may be one of them.

    All are stopped first, so that none can start another process in the meantime.
    """
    family = _stop(root)
    _signal(family, signal.SIGKILL)
    if any(process.pid == os.getpid() for process in family):
        os.kill(os.getpid(), signal.SIGKILL)


def pause_tree(root: int) -> None:
    """Send SIGSTOP to the process `root` and all its descendants. The caller may be one of them, and is the last."""
    if any(process.pid == os.getpid() for process in _stop(root)):
        os.kill(os.getpid(), signal.SIGSTOP)


def _stop(root: int) -> set[psutil.Process]:
    """Send SIGSTOP to `root` and all its descendants, except the caller. Return all of them."""
    parent = psutil.Process(root)
    family: set[psutil.Process] = set()
    # A process may start another before it is stopped, so that one look is not enough.
    while new := {parent, *parent.children(recursive=True)} - family:
        _signal(new, signal.SIGSTOP)
        family |= new
    return family


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each of `processes` that still runs, except the caller."""
    for process in processes:
        if process.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
