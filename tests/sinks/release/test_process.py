"""A release process in its group, with a real broker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from conf.errors import MembershipRefused, NameTaken
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.group.groups import release_group
from sinks.group.members import strangers
from sinks.release.process import ReleaseProcess
from sinks.topics.topics import ensure_topics
from tests.eventually import assert_eventually
from tests.quick_java import quick_broker
from tests.sinks.release.conftest import MakeBench

MEMBER = "north"
SHARDS = {0, 1}


class Running:
    """A release process in a thread. `error` is the error that it ended with."""

    def __init__(self, settings: Settings, refused_limit_s: float = 60) -> None:
        self.process = ReleaseProcess(settings, MEMBER, refused_limit_s)
        self.error: BaseException | None = None
        self.joined = threading.Event()
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
            self.process.run(lambda _: self._stop.is_set(), self.joined.set)
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
    own = {"group.id": release_group(settings).id, "group.instance.id": MEMBER, "log_level": 0}
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
    assert isinstance(running.error, NameTaken)


@contextmanager
def foreign_consumer(settings: Settings, **options: str) -> Iterator[Consumer]:
    """Have shards in the group as a consumer that is not a release process."""
    own = {"group.id": release_group(settings).id, "client.id": "foreign", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": settings.kafka.bootstrap_servers, **own, **options})
    # `consumer.assignment()` would hang while another thread polls.
    assigned, done = threading.Event(), threading.Event()

    def note(_: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            assigned.set()

    def poll() -> None:
        while not done.is_set():
            consumer.poll(0.1)

    consumer.subscribe([settings.ready_topic], on_assign=note)
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        assert_eventually(assigned.is_set)
        yield consumer
    finally:
        done.set()
        thread.join()
        consumer.close()


@pytest.mark.takes(8)
def test_a_shard_gets_the_memory_of_those_that_other_processes_take(prepared: Settings, running: Running) -> None:
    def shares() -> list[int]:
        return [shard._limits(clock_ms=1).bytes for shard in list(running.process.shards.values())]

    assert_eventually(lambda: len(set(shares())) == 1)
    half = shares()[0]
    with foreign_consumer(prepared, **{"partition.assignment.strategy": "cooperative-sticky"}):
        assert_eventually(lambda: len(shares()) == 1 and shares()[0] in (2 * half, 2 * half + 1))


def ends_refused(running: Running, caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Wait until the group has refused the process for as long as it may, and check the report of that."""

    def is_refused() -> bool:
        sentence = running.process.group.refusals.sentence
        return sentence is not None and all(word in sentence for word in words)

    assert_eventually(is_refused)
    assert_eventually(lambda: running.error is not None)
    running.stop()
    assert isinstance(running.error, MembershipRefused)
    assert all(word in str(running.error) for word in words)
    warned = [record for record in caplog.records if record.levelname == "WARNING" and words[0] in record.message]
    assert len(warned) == 1
    assert not running.joined.is_set()


@pytest.mark.takes(12)
def test_a_process_whose_group_has_a_foreign_consumer_warns_once_and_ends_by_name(
    prepared: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = {"partition.assignment.strategy": "range"}
    with foreign_consumer(prepared, **strategy):
        refused = Running(prepared, refused_limit_s=5)
        ends_refused(refused, caplog, "Inconsistent group protocol", "kafka-consumer-groups.sh --describe --members")
    running = Running(prepared)
    assert_eventually(running.has_its_shards)
    assert running.joined.is_set()
    running.stop()


# tests/sinks/group/test_refusals.py has the same sentences.
@pytest.mark.thorough
@pytest.mark.takes(20)
@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {"group.min.session.timeout.ms": "10000"},
            ("Invalid session timeout", "set group.min.session.timeout.ms of the brokers to at most 6000"),
        ),
        (
            {"group.max.size": "1"},
            ("group has reached maximum size", "raise group.max.size of the brokers"),
        ),
    ],
)
def test_a_process_that_the_brokers_settings_keep_out_of_its_group_warns_once_and_ends_by_name(
    java: str,
    tmp_path: Path,
    make_bench: MakeBench,
    caplog: pytest.LogCaptureFixture,
    properties: dict[str, str],
    words: tuple[str, ...],
) -> None:
    with quick_broker(tmp_path, heap="512m", properties=properties) as broker:
        settings = make_bench(broker).settings
        ensure_topics(settings, 1)
        strategy = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": "10000"}
        with foreign_consumer(settings, **strategy):
            ends_refused(Running(settings, refused_limit_s=5), caplog, *words)


@pytest.mark.takes(8)
@pytest.mark.parametrize(
    "options", [{"partition.assignment.strategy": "cooperative-sticky"}, {"group.protocol": "consumer"}]
)
def test_a_member_of_the_group_that_is_no_release_process_is_found_with_its_shards(
    prepared: Settings, options: dict[str, str]
) -> None:
    clients = librdkafka_options(prepared.kafka)
    with foreign_consumer(prepared, **options):
        assert_eventually(lambda: strangers(clients, release_group(prepared)) == {"foreign at 127.0.0.1": [0, 1]})


def test_release_processes_are_no_strangers_in_their_group(prepared: Settings, running: Running) -> None:
    assert running.joined.is_set()
    assert strangers(librdkafka_options(prepared.kafka), release_group(prepared)) == {}


@pytest.mark.thorough
@pytest.mark.takes(40)
def test_a_process_that_has_lost_its_shards_in_an_outage_is_not_drained(
    java: str, tmp_path: Path, make_bench: MakeBench
) -> None:
    with quick_broker(tmp_path, heap="512m") as broker:
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
