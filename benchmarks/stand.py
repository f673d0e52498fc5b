"""The environment of a benchmark: a separate broker, topics and jobs, all of which are stopped at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks.job import PARTITIONS, Application, Job
from benchmarks.usage import UsageWatch
from sinks.topics.topics import ensure_topics
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.claims_watch import ClaimsWatch
from streaming.local.broker import EmbeddedBroker
from streaming.storage.paths import storage_path


class Stand:
    """A broker in a temporary folder, and the jobs started with it.

    A context manager: its end stops the jobs and the broker, and removes the folder unless that is `kept`, with all
    logs, the checkpoint and the broker's data. `properties` are Kafka properties of the broker.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self._properties = properties
        self.kept = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="delayline-bench-"))
            stack.callback(self._remove)
            self.broker = stack.enter_context(EmbeddedBroker(self.folder / "broker", properties=self._properties))
            self._stack = stack.pop_all()
        # A campaign kills the broker: the client must not log that.
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.topic("warm-up", 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Close the client before the broker stops: it would log errors.
        del self.admin
        self._stack.close()

    def _remove(self) -> None:
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        """`host:port` of the broker."""
        return self.broker.bootstrap

    def topic(self, name: str, partitions: int = PARTITIONS, config: Mapping[str, str] | None = None) -> str:
        """Create a topic with Kafka's topic `config`, and return its name."""
        self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result(30)
        return name

    def application(self, name: str, *overrides: str, output_partitions: int = PARTITIONS) -> Application:
        """Return an application, and create its missing topics.

        `overrides` are settings in the form of `--set`; they override the defaults.
        """
        settings = [
            f"application_id={name}",
            f"kafka.bootstrap_servers={self.bootstrap}",
            f"topics.input={name}-in",
            f"topics.output={name}-out",
            f"topics.dead_letter={name}-dead",
            f"storage.path={self.folder / name}",
            *overrides,
        ]
        application = Application(name, self.folder / name, settings, output_partitions)
        if output_partitions != PARTITIONS:
            self.topic(application.output, output_partitions)
        ensure_topics(application.settings, PARTITIONS)
        return application

    def job(self, application: Application, *overrides: str, start: bool = True) -> Job:
        """Return the application's job, and start it unless told otherwise; the stand stops it at the latest."""
        job = Job(application, [*application.overrides, *overrides], self.broker.pid or 0)
        self._stack.callback(job.stop)
        if start:
            job.start()
        return job

    def watch(self) -> UsageWatch:
        """Return a watch for the cost of a reference that runs without a job; a context manager."""
        return UsageWatch(None, self.broker.pid or 0)

    def judge_watch(self, application: Application) -> CheckpointWatch:
        """Return the judge's watch on what the job and its forwarders accept; a context manager."""
        settings = application.settings
        claims = ClaimsWatch(self.bootstrap, settings.claims_topic, settings.near_topic)
        return CheckpointWatch(Path(storage_path(settings)), claims)

    def came_out(self, application: Application) -> dict[str, int]:
        """Return the number of records in the output and in the dead-letter topic."""
        topics = {"came_out": application.output, "dead_letters": application.settings.topics.dead_letter}
        return {name: sum(self.end_offsets(topic)) for name, topic in topics.items()}

    def end_offsets(self, topic: str, partitions: int = PARTITIONS) -> list[int]:
        """Return the end offset of each partition as a subscriber of committed records sees it now."""
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, partitions, newest)

    def offsets_at(self, topic: str, at_s: float, partitions: int = PARTITIONS) -> list[int]:
        """Return for each partition the offset of the first record with a timestamp of `at_s` (epoch s) or later."""
        first = OffsetSpec.for_timestamp(int(at_s * 1000))
        found = self._offsets(topic, partitions, first)
        ends = self.end_offsets(topic, partitions)
        # -1: the partition has no such record.
        return [end if offset < 0 else offset for offset, end in zip(found, ends, strict=True)]

    def _offsets(self, topic: str, partitions: int, which: OffsetSpec) -> list[int]:
        request = {TopicPartition(topic, number): which for number in range(partitions)}
        level = IsolationLevel.READ_COMMITTED
        answers = self.admin.list_offsets(request, isolation_level=level, request_timeout=10)
        offsets = {asked.partition: answer.result(10).offset for asked, answer in answers.items()}
        return [offsets[number] for number in range(partitions)]
