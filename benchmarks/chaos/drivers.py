"""The drivers of a campaign, and their supervisor: a thread that starts drivers whenever all have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from benchmarks.chaos.faults import kill, pause, resume
from benchmarks.cluster import LOOPBACK
from benchmarks.waiting import say, wait_until
from conf.process_tree import kill_tree

_POLL_S = 0.2
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 60.0
_SHOWN = 1500
# How a driver ends that is not the one which may run.
_HELD = "application-held"


class _Driver:
    """`delayline run` as a process, with its log."""

    def __init__(self, folder: Path, number: int, overrides: list[str]) -> None:
        self._log_file = folder / f"run-{number}.log"
        command = [sys.executable, "-m", "streaming.cli", "run"]
        for override in overrides:
            command += ["--set", override]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        environment |= LOOPBACK | {"SPARK_LOCAL_DIRS": str(folder / f"local-{number}")}
        with self._log_file.open("wb") as output:
            self.popen = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def running(self) -> bool:
        return self.alive and "\nrunning\n" in f"\n{self.log}"


class Drivers(threading.Thread):
    """Keeps a driver running: starts `at_once` drivers whenever all have ended. All but one of them must give up.

    `starts` and `gave_up` count them. `problems` has the end of the log of each driver that neither gave up nor was
    killed: a restart would hide its error.
    """

    def __init__(self, folder: Path, overrides: list[str], at_once: int = 1) -> None:
        """Their logs are in `folder`. `overrides` are their `--set` options."""
        super().__init__(daemon=True, name="supervisor")
        self._folder, self._overrides, self._at_once = folder, overrides, at_once
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._drivers: list[_Driver] = []
        self.starts = self.gave_up = 0
        self.problems: list[str] = []

    def run(self) -> None:
        """Start drivers until `stop`."""
        self._folder.mkdir(exist_ok=True)
        while not self._ended.wait(_POLL_S):
            with self._lock:
                self._reap()
                if not self._drivers:
                    self._launch(self._at_once)

    def wait_until_one_runs(self) -> None:
        """Wait until the query of one runs. Raises TimeoutError."""
        wait_until(lambda: any(driver.running for driver in self._drivers), _START_TIMEOUT_S, "a driver", lambda: None)

    def process(self) -> psutil.Process | None:
        """Return the process of a driver that is alive, or None."""
        alive = [driver.popen.pid for driver in self._drivers if driver.alive]
        return psutil.Process(alive[0]) if alive else None

    def kill(self) -> None:
        """Kill all drivers."""
        with self._lock:
            for driver in self._drivers:
                kill(psutil.Process(driver.popen.pid))

    def start_rival(self) -> None:
        """Start one more."""
        with self._lock:
            self._launch(1)

    def pause(self, seconds: float) -> None:
        """Stop all drivers for `seconds`, and start another meanwhile."""
        with self._lock:
            paused = [psutil.Process(driver.popen.pid) for driver in self._drivers if driver.alive]
            for process in paused:
                pause(process)
            self._launch(1)
        time.sleep(seconds)
        for process in paused:
            resume(process)

    def stop(self) -> None:
        """Stop the supervisor and the drivers: by SIGTERM, so that no transaction stays open, or else by SIGKILL."""
        self._ended.set()
        self.join()
        for driver in self._drivers:
            driver.popen.terminate()
        for driver in self._drivers:
            try:
                driver.popen.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.problems.append(f"a driver did not end after SIGTERM: {driver.log[-_SHOWN:]}")
                kill_tree(driver.popen.pid)
                driver.popen.wait()

    def _launch(self, count: int) -> None:
        for _ in range(count):
            self.starts += 1
            self._drivers.append(_Driver(self._folder, self.starts, self._overrides))

    def _reap(self) -> None:
        for driver in [driver for driver in self._drivers if not driver.alive]:
            self._drivers.remove(driver)
            if driver.popen.returncode == 1 and _HELD in driver.log:
                self.gave_up += 1
            elif driver.popen.returncode != -9:
                self.problems.append(f"a driver ended with {driver.popen.returncode}: {driver.log[-_SHOWN:]}")
                say(self.problems[-1])
