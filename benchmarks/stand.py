"""Where a benchmark runs: a broker of its own, topics, and jobs, all ended whatever happens."""

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

from benchmarks.job import Application, Job
from benchmarks.usage import UsageWatch
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker

PARTITIONS = 2


class Stand:
    """A broker in a folder of its own; the context's end takes both away, and every job that was started here.

    `properties` are Kafka's own, for the broker.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self._properties = properties

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="delayline-bench-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.broker = stack.enter_context(EmbeddedBroker(self.folder / "broker", properties=self._properties))
            self._stack = stack.pop_all()
        # Silent when the broker is gone: a campaign kills it.
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
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

    def topic(self, name: str, partitions: int = PARTITIONS, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, with Kafka's own `config`, and return its name."""
        self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result(30)
        return name

    def application(self, name: str, *overrides: str) -> Application:
        """Make the topics of an application that are missing.

        `overrides` are settings, as `--set` takes them, over the defaults.
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
        application = Application(name, self.folder / name, settings)
        ensure_topics(application.settings, PARTITIONS)
        return application

    def job(self, application: Application, *overrides: str) -> Job:
        """Start the application's job; it ends with the stand at the latest."""
        job = Job(application, [*application.overrides, *overrides], self.broker.pid or 0)
        self._stack.callback(job.stop)
        job.start()
        return job

    def watch(self) -> UsageWatch:
        """Return a watch of what a reference costs, which runs without a job: a context."""
        return UsageWatch(None, self.broker.pid or 0)

    def came_out(self, application: Application) -> dict[str, int]:
        """Return how many records are in the output and in the dead-letter topic, for loads that must leave none."""
        topics = {"came_out": application.output, "dead_letters": application.settings.topics.dead_letter}
        return {name: sum(self.end_offsets(topic)) for name, topic in topics.items()}

    def end_offsets(self, topic: str, partitions: int = PARTITIONS) -> list[int]:
        """Return, by partition, the offset up to which a subscriber of committed records can read now."""
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        request = {TopicPartition(topic, number): newest for number in range(partitions)}
        level = IsolationLevel.READ_COMMITTED
        answers = self.admin.list_offsets(request, isolation_level=level, request_timeout=10)
        found = {asked.partition: answer.result(10).offset for asked, answer in answers.items()}
        return [found[number] for number in range(partitions)]
