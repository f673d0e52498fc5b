"""Processes that run commands of the job one after the other, for tests that do not need a fresh process."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from conf.process_tree import kill_tree


class Running(Protocol):
    """A started command of the job, with the interface of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The id of the process that it runs in."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process, unless the command has ended."""


class WarmProcess:
    """A process of `command_loop`, which runs one command at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.system.command_loop"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._command: WarmCommand | None = None
        self.pid = self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a command."""
        ended = self._command is None or self._command.poll() is not None
        return ended and self._process.poll() is None

    def start(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> WarmCommand:
        """Start a command, with its output in `log`."""
        assert self._process.stdin is not None
        log.touch()
        command = {"arguments": arguments, "log": str(log), "environment": dict(environment)}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        self._command = WarmCommand(self)
        return self._command

    def exit_code(self, timeout_s: float | None) -> int | None:
        """Return the exit code of the command, or of the process if it was killed; None after `timeout_s`."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            return None
        line = self._process.stdout.readline()
        return int(line) if line else self._process.wait()

    def close(self) -> None:
        """End the process and its descendants."""
        if self._process.poll() is None:
            kill_tree(self.pid)
        self._process.communicate()


class WarmCommand:
    """A command that a warm process runs or has run."""

    def __init__(self, process: WarmProcess) -> None:
        self._process = process
        self._code: int | None = None
        self.pid = process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self._code is None:
            self._code = self._process.exit_code(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises TimeoutExpired."""
        if self._code is None:
            self._code = self._process.exit_code(timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired("delayline", timeout or 0.0)
        return self._code

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class WarmProcesses:
    """The warm processes of a test session."""

    def __init__(self) -> None:
        self._all: list[WarmProcess] = []

    def start(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> Running:
        """Start a command of the job in an idle process, or in a new one."""
        process = next((each for each in self._all if each.is_idle), None)
        if process is None:
            process = WarmProcess()
            self._all.append(process)
        return process.start(arguments, log, environment)

    def close(self) -> None:
        """End all processes."""
        for process in self._all:
            process.close()
