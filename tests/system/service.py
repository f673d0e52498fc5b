"""The job as its users run it: a separate process, which a test can stop, kill, and start again."""

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
from tests.eventually import PATIENCE, assert_eventually
from tests.system.warm import Running, WarmProcesses

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0


class Service:
    """`delayline run` with `overrides` as its `--set`. Its output goes to `<folder>/run-<n>.log`.

    Other commands of the job run with the same overrides.
    """

    def __init__(self, folder: Path, overrides: list[str], warm: WarmProcesses | None = None) -> None:
        """With `warm`, commands that do not need a new process run in a warm one."""
        self.folder = folder
        self._warm = warm
        self.overrides = overrides
        # Another one runs another version.
        self.python: str | Path = sys.executable
        # Overrides the test's environment at each start.
        self.environment: dict[str, str] = {}
        # True: in a separate process group, as from a terminal, so that Ctrl-C goes to the whole group. False: in the
        # group of the tests, with which it ends.
        self.in_own_group = False
        self._runs = 0
        self._process: Running | None = None

    @property
    def log(self) -> str:
        """The output of the newest run; empty before the first run."""
        return "" if not self._runs else (self.folder / f"run-{self._runs}.log").read_text(errors="replace")

    def start(self, failpoint: str | None = None, wait: bool = True, *arguments: str) -> None:
        """Start the job; with `wait`, return once its query runs."""
        self.launch(failpoint, "run", *arguments)
        if wait:
            assert_eventually(self._running_or_failed, _START_TIMEOUT_S, "the start of the job")

    def command(self, *arguments: str, failpoint: str | None = None) -> int:
        """Run another command until it ends, and return the exit code: -9 if it was killed."""
        self.launch(failpoint, *arguments)
        return self.wait(120)

    def launch(self, failpoint: str | None, *arguments: str) -> None:
        """Start a command, and return at once."""
        self._runs += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        environment |= self.environment
        if failpoint:
            environment[VARIABLE] = failpoint
        command = [*arguments, *(part for override in self.overrides for part in ("--set", override))]
        log = self.folder / f"run-{self._runs}.log"
        # A preloaded clock, a kill and a process group need a new process.
        if self._warm is not None and not (failpoint or self.environment or self.in_own_group):
            self._process = self._warm.start(command, log, environment)
            return
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self.python, "-m", "streaming.cli", *command],
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
        """Return whether the job still runs."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Wait until the job ends by itself, and return its exit code: -9 if it was killed.

        Raises:
            subprocess.TimeoutExpired: After `PATIENCE` times `timeout_s`.
        """
        assert self._process is not None
        return self._process.wait(PATIENCE * timeout_s)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> int:
        """Send Ctrl-C as its terminal would, and return the exit code."""
        assert self.in_own_group, "the tests would be interrupted as well"
        os.killpg(self.pid, signal.SIGINT)
        return self.wait()

    @property
    def pid(self) -> int:
        """The process id of the newest run."""
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        """Send SIGSTOP to the driver and all its descendants, as if its host slept."""
        stopped: set[psutil.Process] = set()
        driver = psutil.Process(self.pid)
        # A process can start another one until it is stopped, but not after that.
        while new := {driver, *driver.children(recursive=True)} - stopped:
            for process in new:
                # The process may have ended meanwhile.
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped |= new

    def is_paused(self) -> bool:
        """Return whether the driver was stopped, which a failpoint does last; fail, with its log, if it has ended."""
        self.check()
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def resume(self) -> None:
        """Send SIGCONT to the driver and all its descendants."""
        driver = psutil.Process(self.pid)
        for process in (*driver.children(recursive=True), driver):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """Send SIGKILL to the driver and all its descendants."""
        if self._process is not None and self._process.poll() is None:
            kill_tree(self._process.pid)
            self._process.wait(PATIENCE * _STOP_TIMEOUT_S)
