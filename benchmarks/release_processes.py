"""Finds release processes and forwarders, kills all else of a job, and starts `delayline release` next to a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.waiting import wait_until
from streaming.processes.kinds import SPARE, Kind

_SUPERVISED = "streaming.processes.supervised"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_SHARDS = re.compile(r"group (assigned|revoked) shards \[([\d, ]*)\] ")


def is_release(process: psutil.Process) -> bool:
    """Return whether this is a release process: one that a job started, or `delayline release`."""
    return _is(process, Kind.RELEASE, Kind.FORWARD, "release")


def is_forwarder(process: psutil.Process) -> bool:
    """Return whether this is a forwarder: one that a job started, or `delayline forward`."""
    return _is(process, Kind.FORWARD, Kind.RELEASE, "forward")


def _is(process: psutil.Process, kind: Kind, other: Kind, command: str) -> bool:
    try:
        line, name = process.cmdline(), process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    # A spare one may become either.
    is_started = _SUPERVISED in line and kind in line and name not in (SPARE, other.comm)
    return is_started or ("streaming.cli", command) in pairwise(line)


def release_children(root: psutil.Process) -> list[psutil.Process]:
    """Return the release processes that `root`, a driver, has started."""
    try:
        return [child for child in root.children(recursive=True) if is_release(child)]
    except psutil.NoSuchProcess:
        return []


def kill_driver(root: psutil.Process) -> list[psutil.Process]:
    """Send SIGKILL to `root` and its descendants, except release processes and forwarders: these are orphans now.

    Returns the orphans.
    """
    killed: set[psutil.Process] = set()
    # A process may start another before it is stopped, so that one look is not enough.
    while new := {root, *(each for each in root.children(recursive=True) if not _is_spared(each))} - killed:
        _signal(new, psutil.Process.suspend)
        killed |= new
    spared = [each for each in root.children(recursive=True) if _is_spared(each)]
    _signal(killed, psutil.Process.kill)
    return spared


def _is_spared(process: psutil.Process) -> bool:
    return is_release(process) or is_forwarder(process)


def _signal(processes: Iterable[psutil.Process], signal: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            signal(process)


def shards_in(log: str) -> set[int]:
    """Return the shards that a release process has, by its log."""
    shards: set[int] = set()
    for match in _SHARDS.finditer(log):
        named = {int(number) for number in match[2].split(",") if number.strip()}
        # The lines name all that it has now, or those that it no longer has.
        shards = named if match[1] == "assigned" else shards - named
    return shards


def shard_of(topic: str, partition: int, shards: int) -> int:
    """Return the shard that writes to an output partition (`state.shards`)."""
    return (zlib.crc32(topic.encode()) + partition) % shards


class ReleaseCommand:
    """`delayline release --name NAME` as a process. A context manager, which kills it."""

    def __init__(self, name: str, overrides: list[str], folder: Path) -> None:
        """Start it with `overrides` as its `--set` options; its log is in `folder`."""
        self.name = name
        self._log_file = folder / f"release-{name}-{time.time_ns()}.log"
        command = [sys.executable, "-m", "streaming.cli", "release", "--name", name]
        for override in overrides:
            command += ["--set", override]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        folder.mkdir(exist_ok=True)
        with self._log_file.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def __enter__(self) -> Self:
        self.wait_until_it_runs()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def process(self) -> psutil.Process:
        """The process."""
        return psutil.Process(self._process.pid)

    def wait_until_it_runs(self) -> None:
        """Wait until it has joined the release processes. Raises TimeoutError, and the error that `check` raises."""
        wait_until(lambda: "\nrunning\n" in f"\n{self.log}", _START_TIMEOUT_S, f"the start of {self.name}", self.check)

    @property
    def log(self) -> str:
        """Everything that the process has printed."""
        return self._log_file.read_text(errors="replace")

    @property
    def shards(self) -> set[int]:
        """The shards that it has."""
        return shards_in(self.log)

    def check(self) -> None:
        """Raise RuntimeError with the end of the log if the process has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"release process {self.name} ended with {code}:\n{self.log[-3000:]}")

    def kill(self) -> None:
        """Send SIGKILL, and return when it has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM, and return its exit code. Raises subprocess.TimeoutExpired if it does not end."""
        self._process.terminate()
        return self._process.wait(_STOP_TIMEOUT_S)
