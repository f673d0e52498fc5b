"""A release process in its group, with a real broker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from conf.errors import ReleaseTaken
from conf.settings import Settings
from sinks.release.process import ReleaseProcess, group_id
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.sinks.release.conftest import MakeBench

MEMBER = "north"
SHARDS = {0, 1}


class Running:
    """A release process in a thread; `error` is what it ended with."""

    def __init__(self, settings: Settings) -> None:
        self.process = ReleaseProcess(settings, MEMBER)
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def has_its_shards(self) -> bool:
        assert self.error is None
        return self.process.shards.keys() == self.process.assigned == SHARDS

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.process.run(lambda _: self._stop.is_set())
        except BaseException as error:  # noqa: BLE001, the test looks at it
            self.error = error


@pytest.fixture
def running(prepared: Settings) -> Iterator[Running]:
    made = Running(prepared)
    assert_eventually(made.has_its_shards)
    yield made
    made.stop()


@contextmanager
def namesake(settings: Settings) -> Iterator[Consumer]:
    """Join the group under the name of the process, and take its place."""
    own = {"group.id": group_id(settings), "group.instance.id": MEMBER, "log_level": 0}
    strategy = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6_000}
    consumer = Consumer({"bootstrap.servers": settings.kafka.bootstrap_servers, **own, **strategy})
    consumer.subscribe([settings.ready_topic])
    try:
        yield consumer
    finally:
        consumer.close()


def fenced(consumer: Consumer) -> bool:
    """Return whether a poll of `consumer` says that another one has its name."""
    message = consumer.poll(0.1)
    error = None if message is None else message.error()
    return error is not None and error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


def test_a_process_that_is_fenced_joins_its_group_again_once(prepared: Settings, running: Running) -> None:
    before = set(running.process.shards.values())
    with namesake(prepared) as first:
        assert_eventually(lambda: fenced(first))
    assert_eventually(running.has_its_shards)
    assert not before & set(running.process.shards.values())
    with namesake(prepared) as second:

        def has_ended() -> bool:
            assert not fenced(second)
            return running.error is not None

        assert_eventually(has_ended)
    assert isinstance(running.error, ReleaseTaken)


@pytest.mark.thorough
@pytest.mark.takes(40)
def test_a_process_that_has_lost_its_shards_in_an_outage_is_not_drained(
    java: str, tmp_path: Path, make_bench: MakeBench
) -> None:
    with EmbeddedBroker(tmp_path, heap="512m") as broker:
        settings = make_bench(broker, "release.transaction_timeout=3s").settings
        ensure_topics(settings, 1)
        running = Running(settings)
        process = running.process

        def has_drained_its_shards() -> bool:
            assert running.error is None
            return bool(process.assigned) and process.drained

        assert_eventually(has_drained_its_shards)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            assert_eventually(lambda: not process.assigned)
            assert not process.drained
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert_eventually(has_drained_its_shards)
        running.stop()
