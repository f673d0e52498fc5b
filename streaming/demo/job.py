"""The demo's job: `delayline run` in a separate process that can be killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from conf.end_signals import deferred
from conf.errors import QueryFailed

_STOP_TIMEOUT_S = 60.0
_TAIL_LINES = 25


class Job:
    """`delayline run` with `overrides` as its `--set` options. Each run has a log file of its own in `folder`."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "streaming.cli", "run"]
        for override in overrides:
            self._command += ["--set", override]
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the query has started. Raises QueryFailed, with the end of the log, if the job has ended."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise QueryFailed(f"the job ended with exit code {code}; the end of its log:\n{self.log_end()}")
        return "running" in self._read().splitlines()

    def start(self) -> None:
        """Start the process and return at once; `running` tells when the query has started."""
        self._runs += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        scratch = self._folder / "tmp"
        scratch.mkdir(exist_ok=True)
        # Signals are deferred: if one ended the demo between the start of the process and the assignment, the job
        # would keep running.
        with self._log.open("wb") as log, deferred():
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                # A killed job leaves temporary files behind; put them into the demo's folder, which is removed.
                env=environment | {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C on a terminal should reach the demo only, which then stops the job.
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL the driver and its Java process. Python workers form a group of their own and end with that Java."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM and wait until the job has ended. Raises QueryFailed if it fails or does not end in time."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise QueryFailed(f"the job did not end within {_STOP_TIMEOUT_S:.0f} s of SIGTERM") from None
        if code != 0:
            raise QueryFailed(f"the job ended with exit code {code}; the end of its log:\n{self.log_end()}")

    def log_end(self) -> str:
        """The last lines of the newest run's log."""
        return "\n".join(self._read().splitlines()[-_TAIL_LINES:])

    @property
    def _log(self) -> Path:
        return self._folder / f"job-{self._runs}.log"

    def _read(self) -> str:
        return self._log.read_text(errors="replace")
