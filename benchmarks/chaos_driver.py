"""The job of a campaign, and its supervisor: a thread that restarts the job whenever it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from benchmarks.cluster import LOOPBACK
from benchmarks.waiting import say, wait_until
from conf.process_tree import kill_tree

_POLL_S = 0.2
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 60.0
_SHOWN = 1500


class Driver(threading.Thread):
    """`delayline run` with `overrides` as its `--set` options; its logs are in `folder`, one for each start."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        super().__init__(daemon=True, name="supervisor")
        self._folder = folder
        self._command = [sys.executable, "-m", "streaming.cli", "run"]
        for override in overrides:
            self._command += ["--set", override]
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def run(self) -> None:
        """Start the job, and restart it at each end, until `stop`."""
        self._folder.mkdir(exist_ok=True)
        while not self._ended.is_set():
            if self._process is None or self._process.poll() is not None:
                self._report()
                self._launch()
            time.sleep(_POLL_S)

    def process(self) -> psutil.Process | None:
        """Return the driver's process; None if it does not run."""
        running = self._process
        return psutil.Process(running.pid) if running is not None and running.poll() is None else None

    def wait_until_it_runs(self) -> None:
        """Wait until the query runs. Raises TimeoutError."""
        wait_until(lambda: "\nrunning\n" in f"\n{self._log()}", _START_TIMEOUT_S, "the start of the job", lambda: None)

    def stop(self) -> None:
        """Stop the supervisor and the job: by SIGTERM, so that no transaction stays open, or else by SIGKILL."""
        self._ended.set()
        self.join()
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            say("the job did not end after SIGTERM, and was killed")
            kill_tree(self._process.pid)
            self._process.wait()

    def _launch(self) -> None:
        self.starts += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        environment |= LOOPBACK | {"SPARK_LOCAL_DIRS": f"{self._folder}-local"}
        with self._log_file.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def _report(self) -> None:
        """Print how the job ended, unless it was killed: an error that a restart hides is worth knowing."""
        if self._process is not None and (code := self._process.returncode) != -9:
            say(f"the job ended with {code}: {self._log()[-_SHOWN:].strip()}")

    @property
    def _log_file(self) -> Path:
        return self._folder / f"run-{self.starts}.log"

    def _log(self) -> str:
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""
