"""Runs the job as a user does, as a process, and watches it from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.release_processes import is_release, kill_driver, release_children
from benchmarks.usage import UsageWatch
from benchmarks.waiting import say, wait_until
from conf.load import load_settings
from conf.process_tree import kill_tree
from conf.settings import Settings

# The partitions of a topic, unless a benchmark needs more.
PARTITIONS = 2
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 90.0
_ORPHAN_S = 10.0
_BATCH_LINE = re.compile(
    r"^(\S+Z) .*batch (\d+): staged messages due before \S+ \((\d+)\), "
    r"sealed (\d+) messages in (\d+) segments, took ([\d.]+) s$",
    re.MULTILINE,
)
_RECOVERED_LINE = re.compile(
    r"recovered (?P<segments>\d+) live segments in (?P<buckets>\d+) buckets: (?P<messages>\d+) messages, "
    r"(?P<metadata_bytes>\d+) bytes of metadata"
)


class BatchLine(NamedTuple):
    """One batch in the job's log: messages and segments sealed, and the seconds that its steps took.

    All messages due below `cutoff_ms` (epoch ms) were staged by `done_s` (epoch s). Spark commits the batch later: it
    waits for arrivals first, up to 5 s.
    """

    done_s: float
    cutoff_ms: int
    sealed: int
    segments: int
    steps_s: float


class Intake(NamedTuple):
    """A batch that accepted messages. It was planned at `planned_s`, and staged and sealed by `done_s`, both epoch s.

    `end` is the number of messages of the input topic up to this batch.
    """

    batch_id: int
    end: int
    planned_s: float
    done_s: float


def batch_lines_in(log: str) -> dict[int, BatchLine]:
    """Return the lines of a job's log about batches that staged or sealed messages, by batch id."""
    lines = {}
    for line in _BATCH_LINE.finditer(log):
        done_s = datetime.fromisoformat(line[1]).timestamp()
        lines[int(line[2])] = BatchLine(done_s, int(line[3]), int(line[4]), int(line[5]), float(line[6]))
    return lines


@dataclass(frozen=True)
class Application:
    """The names and settings of one application; `folder` has its storage."""

    name: str
    folder: Path
    overrides: list[str]
    output_partitions: int = PARTITIONS

    @property
    def input(self) -> str:
        """The input topic."""
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        """The output topic."""
        return f"{self.name}-out"

    @property
    def settings(self) -> Settings:
        """All settings, without those in this process's environment."""
        return load_settings(None, self.overrides, environ={})


@dataclass
class Job:
    """`delayline run` as a process, with its log, a watch on its checkpoint, and samples of its CPU and memory."""

    application: Application
    overrides: list[str]
    broker_pid: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    # Release processes that outlived their driver. The next one goes on with them.
    _orphans: list[psutil.Process] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start the process, and return when its query runs. Sets `start_s`, the seconds that this took."""
        self.launch()
        wait_until(lambda: "\nrunning\n" in f"\n{self.log}", _START_TIMEOUT_S, "the start of the job", self.check)
        self.start_s = time.monotonic() - self.launched

    def launch(self) -> None:
        """Start or restart the process, and return at once. Sets `launched`, the start by `time.monotonic()`."""
        folder = self.application.folder
        folder.mkdir(exist_ok=True)
        self.log_file = folder / f"run-{time.time_ns()}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        # A killed job leaves these files behind; this folder is removed with the stand.
        environment["SPARK_LOCAL_DIRS"] = str(folder.with_name(f"{folder.name}-local"))
        command = [sys.executable, "-m", "streaming.cli", "run"]
        for override in self.overrides:
            command += ["--set", override]
        self.launched = time.monotonic()
        with self.log_file.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self.batches = CheckpointWatch(folder / "checkpoint", self.application.input)
        self.usage = UsageWatch(self._process.pid, self.broker_pid, self._orphans)
        self.batches.start()
        self.usage.start()

    @property
    def pid(self) -> int:
        """The process id of the driver. Raises RuntimeError if the job does not run."""
        self.check()
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything that the process has printed."""
        return self.log_file.read_text(errors="replace")

    def check(self) -> None:
        """Raise RuntimeError with the end of the log if the process has ended."""
        if self._process is None or (code := self._process.poll()) is not None:
            raise RuntimeError(f"the job ended with {code}:\n{self.log[-3000:]}")

    def kill(self) -> None:
        """Kill all processes of the job by SIGKILL, like a crash. Raises RuntimeError if the job had ended before."""
        self.check()
        process = self._detach()
        assert process is not None
        kill_tree(process.pid)
        self._kill_orphans()
        process.wait()

    def kill_driver(self) -> None:
        """Kill the driver, its JVM and their Python processes by SIGKILL, but no release process and no forwarder.

        These go on, and a restarted job with them. Raises RuntimeError if the job had ended before.
        """
        self.check()
        process = self._detach()
        assert process is not None
        self._orphans += kill_driver(psutil.Process(process.pid))
        process.wait()

    def kill_releases(self) -> None:
        """Kill the job's release processes by SIGKILL. The job starts them again."""
        self.check()
        assert self._process is not None
        found = release_children(psutil.Process(self._process.pid))
        found += [orphan for orphan in self._orphans if is_release(orphan)]
        if not found:
            raise RuntimeError("the job has no release process")
        for each in found:
            each.kill()

    def stop(self) -> None:
        """Stop the job by SIGTERM, or by SIGKILL to its tree if that takes too long. A second call does nothing."""
        if (process := self._detach()) is None:
            self._kill_orphans()
            return
        tree = _children(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except BaseException as problem:
            kill_tree(process.pid)
            process.wait()
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            say(f"the job did not stop within {_STOP_TIMEOUT_S:.0f} s, and was killed")
        finally:
            # If the driver was stopped during its start, its JVM may still run until it notices.
            for child in psutil.wait_procs(tree, _ORPHAN_S)[1]:
                child.kill()
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        for orphan in self._orphans:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
        self._orphans.clear()

    def wait_for_messages(self, count: int, timeout_s: float) -> None:
        """Wait until batches with `count` input messages are committed."""
        wait_until(lambda: self.batches.messages >= count, timeout_s, f"{count:,} messages ingested", self.check)

    def batch_lines(self) -> dict[int, BatchLine]:
        """Return the lines of the log about batches that staged or sealed messages, by batch id."""
        return batch_lines_in(self.log)

    def intake(self, after: int = 0) -> list[Intake]:
        """Return the batches that accepted messages, not counting the first `after` messages of the input topic.

        Batches that neither staged nor sealed messages are left out, because the log does not say when they were done.
        Without other batches, the times of their commits count.
        """
        lines, batches = self.batch_lines(), self.batches.taking_in(after)
        done_s = {batch.batch_id: lines[batch.batch_id].done_s for batch in batches if batch.batch_id in lines}
        done_s = done_s or {batch.batch_id: batch.committed_s for batch in batches}
        return [
            Intake(batch.batch_id, batch.end, batch.planned_s, done_s[batch.batch_id])
            for batch in batches
            if batch.batch_id in done_s
        ]

    def sealed(self) -> int:
        """Return the number of messages that the job has sealed since its start, from its log."""
        return sum(line.sealed for line in self.batch_lines().values())

    def recovered(self) -> dict[str, int]:
        """Return what the job recovered at its start, from its log: segments, buckets, messages, metadata_bytes.

        `metadata_bytes` is the size in the driver's memory. Returns an empty dict if the line is not in the log.
        """
        match = _RECOVERED_LINE.search(self.log)
        return {name: int(value) for name, value in match.groupdict().items()} if match else {}

    def triggers(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return percentiles of the triggers' durations within [start_s, end_s) epoch s, from checkpoint and log."""
        batches = self.batches.between(start_s, end_s)
        lines = self.batch_lines()
        spans_s: dict[str, Any] = {
            "between_commits": np.diff([batch.committed_s for batch in batches]),
            "batch_steps": [lines[batch.batch_id].steps_s for batch in batches if batch.batch_id in lines],
        }
        return {
            f"{name}_p{percent}_s": round(float(np.percentile(spans, percent)), 3)
            for name, spans in spans_s.items()
            if len(spans)
            for percent in (50, 99)
        }

    def _detach(self) -> subprocess.Popen[bytes] | None:
        """Stop the watches and return the process; None if a call before this one did."""
        process, self._process = self._process, None
        if process is not None:
            self.batches.stop()
            self.usage.stop()
        return process


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
