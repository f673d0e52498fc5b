"""Processes that run commands of the job, one after the other, for tests whose point is no fresh start."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from conf.failpoints import kill_tree


class Running(Protocol):
    """A command of the job that was started, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """The process that it runs in."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process."""


class WarmProcess:
    """A process of `command_loop`; `start` runs one command in it, and it is that command until this ends."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.system.command_loop"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._code: int | None = 0
        self.pid = self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a command."""
        return self.poll() is not None and self._process.poll() is None

    def start(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        """Begin a command, with its output in `log`."""
        assert self._process.stdin is not None
        self._code = None
        log.touch()
        command = {"arguments": arguments, "log": str(log), "environment": dict(environment)}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def poll(self) -> int | None:
        """Return the command's exit code, or that of the process if it was killed."""
        return self._answer(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the same once there is one. Raises TimeoutExpired."""
        code = self._answer(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("delayline", timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, sig)

    def close(self) -> None:
        """End the process and what it started."""
        if self._process.poll() is None:
            kill_tree(self.pid)
        self._process.communicate()

    def _answer(self, timeout_s: float | None) -> int | None:
        if self._code is None:
            assert self._process.stdout is not None
            ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
            if ready:
                line = self._process.stdout.readline()
                # The output of a process that was killed ends.
                self._code = int(line) if line else self._process.wait()
        return self._code


class WarmProcesses:
    """Those of a test session."""

    def __init__(self) -> None:
        self._all: list[WarmProcess] = []

    def start(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> Running:
        """Begin a command of the job in a process that is idle, or in a new one."""
        process = next((each for each in self._all if each.is_idle), None)
        if process is None:
            process = WarmProcess()
            self._all.append(process)
        process.start(arguments, log, environment)
        return process

    def close(self) -> None:
        """End them all."""
        for process in self._all:
            process.close()
