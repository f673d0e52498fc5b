"""The job as its users run it: a process of its own, which a test can stop, kill, and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from conf.failpoints import VARIABLE
from conf.process_tree import kill_tree
from tests.eventually import assert_eventually
from tests.system.warm import Running, WarmProcesses

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0


class Service:
    """`delayline run` with the settings given as `--set`; its output goes to `<folder>/run-<n>.log`.

    Other commands of the job are run with the same settings.
    """

    def __init__(self, folder: Path, overrides: list[str], warm: WarmProcesses | None = None) -> None:
        """With `warm`, what needs no process of its own runs in one of those."""
        self.folder = folder
        self._warm = warm
        self.overrides = overrides
        # Goes over the test's own at each start.
        self.environment: dict[str, str] = {}
        # As a terminal gives it to what it starts: Ctrl-C goes to all of the group. Otherwise that of the tests, with
        # which it ends.
        self.in_own_group = False
        self._runs = 0
        self._process: Running | None = None

    @property
    def log(self) -> str:
        """What the newest run has printed."""
        return (self.folder / f"run-{self._runs}.log").read_text(errors="replace")

    def start(self, failpoint: str | None = None, wait: bool = True, *arguments: str) -> None:
        """Start the job; with `wait`, return once its query runs."""
        self._launch(failpoint, "run", *arguments)
        if wait:
            assert_eventually(self._running_or_failed, _START_TIMEOUT_S, "the start of the job")

    def command(self, *arguments: str, failpoint: str | None = None) -> int:
        """Run another of its commands to the end, and return the exit code: -9 when it was killed."""
        self._launch(failpoint, *arguments)
        return self.wait(120)

    def _launch(self, failpoint: str | None, *arguments: str) -> None:
        self._runs += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        environment |= self.environment
        if failpoint:
            environment[VARIABLE] = failpoint
        command = [*arguments, *(part for override in self.overrides for part in ("--set", override))]
        log = self.folder / f"run-{self._runs}.log"
        # A preloaded clock, a kill, and a group are a process' own.
        if self._warm is not None and not (failpoint or self.environment or self.in_own_group):
            self._process = self._warm.start(command, log, environment)
            return
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streaming.cli", *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0 if self.in_own_group else None,
            )

    def check(self) -> None:
        """Fail, with its log, if the job has ended."""
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the job ended with {code}:\n{self.log[-4000:]}"

    def _running_or_failed(self) -> bool:
        self.check()
        return "\nrunning\n" in "\n" + self.log

    def is_running(self) -> bool:
        """Say whether the job has not ended."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Wait until the job ends by itself, and return its exit code: -9 when it was killed."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> int:
        """Ctrl-C on its terminal, and the exit code."""
        assert self.in_own_group, "the tests would be interrupted as well"
        os.killpg(self.pid, signal.SIGINT)
        return self.wait()

    @property
    def pid(self) -> int:
        """The process id of the newest run."""
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        """SIGSTOP to the driver and all that it started, as when its host sleeps."""
        family: set[psutil.Process] = set()
        driver = psutil.Process(self.pid)
        # A process can start another between the look and the stop, but not after it.
        while new := {driver, *driver.children(recursive=True)} - family:
            for process in new:
                # One that was at its end may be gone.
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            family |= new

    def resume(self) -> None:
        """SIGCONT to them all."""
        driver = psutil.Process(self.pid)
        for process in (*driver.children(recursive=True), driver):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """SIGKILL to the driver and all that it started."""
        if self._process is not None and self._process.poll() is None:
            kill_tree(self._process.pid)
            self._process.wait(_STOP_TIMEOUT_S)
