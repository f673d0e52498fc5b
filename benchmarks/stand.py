"""Where a benchmark runs: a broker of its own, topics, and the job as its users run it, all ended whatever happens."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.usage import UsageWatch
from conf.failpoints import kill_tree
from conf.load import load_settings
from conf.settings import Settings
from sinks.topics import ensure_topics
from sources.broker import EmbeddedBroker

PARTITIONS = 2
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 90.0
_BATCH_LINE = re.compile(r"batch (\d+): delivered below (\d+), sealed (\d+) messages in (\d+) segments, ([\d.]+) s")


def say(text: str) -> None:
    """Tell what the benchmark does now."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, check: Callable[[], None]) -> None:
    """Wait for `condition`. Raises TimeoutError, and what `check` raises when waiting has become pointless."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)


class Stand:
    """A broker in a folder of its own; the context's end takes both away, and every job that was started here."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="delayline-bench-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.broker = stack.enter_context(EmbeddedBroker(self.folder / "broker"))
            self._stack = stack.pop_all()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.topic("warm-up", 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Before the broker goes: the client would complain that it is gone.
        del self.admin
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        """`host:port` of the broker."""
        return self.broker.bootstrap

    def topic(self, name: str, partitions: int = PARTITIONS) -> str:
        """Create a topic, and return its name."""
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def application(self, name: str, *overrides: str) -> Application:
        """Make an application's topics. `overrides` are settings, as `--set` takes them, over the defaults."""
        settings = [
            f"application_id={name}",
            f"kafka.bootstrap_servers={self.bootstrap}",
            f"topics.input={name}-in",
            f"topics.output={name}-out",
            f"topics.dead_letter={name}-dead",
            f"storage.path={self.folder / name}",
            *overrides,
        ]
        application = Application(name, self.folder / name, settings)
        ensure_topics(application.settings, PARTITIONS)
        return application

    def job(self, application: Application, *overrides: str) -> Job:
        """Start the application's job; it ends with the stand at the latest."""
        job = Job(application, [*application.overrides, *overrides], self.broker.pid or 0)
        self._stack.callback(job.stop)
        job.start()
        return job

    def end_offsets(self, topic: str, partitions: int = PARTITIONS) -> list[int]:
        """Return, by partition, the offset up to which a subscriber of committed records can read now."""
        request = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        level = IsolationLevel.READ_COMMITTED
        answers = self.admin.list_offsets(request, isolation_level=level, request_timeout=10)
        found = {asked.partition: answer.result(10).offset for asked, answer in answers.items()}
        return [found[number] for number in range(partitions)]


@dataclass(frozen=True)
class Application:
    """The names and settings of one application; its storage lies in `folder`."""

    name: str
    folder: Path
    overrides: list[str]

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
        """All settings; none comes from this process's environment."""
        return load_settings(None, self.overrides, environ={})


@dataclass
class Job:
    """`delayline run` as a process, its log, its checkpoint watched, its use of CPU and memory sampled."""

    application: Application
    overrides: list[str]
    broker_pid: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, and return once its query runs. `start_s` is how long that took."""
        folder = self.application.folder
        folder.mkdir(exist_ok=True)
        self.log_file = folder / f"run-{time.time_ns()}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELAYLINE_")}
        command = [sys.executable, "-m", "streaming.cli", "run"]
        for override in self.overrides:
            command += ["--set", override]
        begun = time.monotonic()
        with self.log_file.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self.batches = CheckpointWatch(folder / "checkpoint", self.application.input)
        self.usage = UsageWatch(self._process.pid, self.broker_pid)
        self.batches.start()
        self.usage.start()
        wait_until(lambda: "\nrunning\n" in f"\n{self.log}", _START_TIMEOUT_S, "the start of the job", self.check)
        self.start_s = time.monotonic() - begun

    @property
    def log(self) -> str:
        """What it has printed."""
        return self.log_file.read_text(errors="replace")

    def check(self) -> None:
        """Raise RuntimeError with the end of its log when it has ended."""
        if self._process is None or (code := self._process.poll()) is not None:
            raise RuntimeError(f"the job ended with {code}:\n{self.log[-3000:]}")

    def stop(self) -> None:
        """End it in order, by SIGKILL to its tree if that takes too long. Does nothing the second time."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self.batches.stop()
        self.usage.stop()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except BaseException as problem:
            kill_tree(process.pid)
            process.wait()
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            say(f"the job did not stop within {_STOP_TIMEOUT_S:.0f} s, and was killed")

    def wait_for_messages(self, count: int, timeout_s: float) -> None:
        """Wait until batches with `count` input messages are committed."""
        wait_until(lambda: self.batches.messages >= count, timeout_s, f"{count:,} messages ingested", self.check)

    def batch_lines(self) -> dict[int, tuple[int, float]]:
        """Return from its log, by batch, how many messages it sealed and how many seconds its steps took."""
        return {int(found[1]): (int(found[3]), float(found[5])) for found in _BATCH_LINE.finditer(self.log)}
