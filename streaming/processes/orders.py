"""The orders that a supervisor gives to a process."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from conf.failpoints import VARIABLE
from conf.settings import Settings
from streaming.processes.kinds import Kind

_ROOT = Path(__file__).parents[2]
# The packages that these processes run.
_PACKAGES = ("conf", "state", "sources", "sinks", "streaming/forward", "streaming/monitor", "streaming/processes")


@dataclass(frozen=True)
class Orders:
    """The first data that the supervisor sends to a process.

    - `member`: the name of the process
    - `code`: names the code that the supervisor would start (`code_now`)
    - `log_level`: how much the process logs
    - `root`: the process id of the supervisor
    """

    kind: Kind
    settings: Settings
    member: str
    code: str
    log_level: str
    root: int

    def same_work(self, other: Orders) -> bool:
        """Return whether a process with these orders does what one with the `other` orders would do."""
        # The code first: the orders of another version may have other fields.
        return self.code == other.code and (self.kind, self.settings, self.member) == (
            other.kind,
            other.settings,
            other.member,
        )


def code_now() -> str:
    """Return a text that is different after each change of the code that a process runs."""
    files = sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py"))
    changed = [(str(path), path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((changed, os.environ.get(VARIABLE))).encode()).hexdigest()
