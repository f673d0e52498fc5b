"""The demo's job: `delayline run` in a separate process that can be killed and restarted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from conf.end_signals import deferred
from conf.errors import QueryFailed

_STOP_TIMEOUT_S = 60.0
_TAIL_LINES = 25
# The supervisor's lines about a process that it has started, and one that it has adopted.
_RELEASE_PROCESS = re.compile(r"release process \S+(?: is|, process) (\d+)")


class Job:
    """`delayline run` with `overrides` as its `--set` options. Each run has a log file of its own in `folder`."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "streaming.cli", "run"]
        for override in overrides:
            self._command += ["--set", override]
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None
        # All of them, since what a killed one has started may go on.
        self._processes: list[subprocess.Popen[bytes]] = []

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
            self._processes.append(self._process)

    def kill_driver(self) -> None:
        """SIGKILL the driver. Its Java process ends with it, and its release processes go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_release(self) -> None:
        """SIGKILL a release process. Raises QueryFailed if the log names none."""
        pids = _RELEASE_PROCESS.findall(self._read())
        if not pids:
            raise QueryFailed(f"the job started no release process; the end of its log:\n{self.log_end()}")
        os.kill(int(pids[-1]), signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL the job's whole group. Python workers form a group of their own and end with the Java process."""
        for process in self._processes:
            # Also after the driver has ended: release processes may go on.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes = []

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
