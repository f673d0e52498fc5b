"""Fixtures for the tests of the release stage: logs that a test writes, and the committed records of a topic."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conf.load import load_settings
from conf.settings import Settings
from sinks.internal_topics.position import Log, Position, topics_of
from sinks.internal_topics.position_reader import read_position
from sinks.ready_log.chunk import chunk_record
from sinks.release import (
    log_consumers,
    record_check,
    records,
    releases,
    ring,
    shard,
    shard_writer,
    waiting_ids,
    wall_clock,
)
from sinks.release.context import ReleaseContext
from sinks.release.counts import ReleaseCounts
from sinks.release.known_topics import MOST_REFUSALS
from sinks.release.ring import Ring
from sinks.release.shard import ShardRelease
from sources.subscriber import received
from state.message_ids import are_in
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually

Read = Callable[[str], list[Message]]
MakeBench = Callable[..., "ReleaseBench"]

# A test that waits for a release to end or to catch up fails after this time.
_TIMEOUT_S = 60.0
_COMPACTED = {"cleanup.policy": "compact"}
# A chunk is as large as a broker takes a request.
_LOG = {"retention.ms": "-1", "max.message.bytes": "100000000"}


@dataclass
class ReleaseBench:
    """An application with one shard. The test writes its logs.

    `settings` and `most_refusals` apply to the next release process, and `counts` belong to the last one. The topics
    are read and written on `broker`.
    """

    broker: EmbeddedBroker
    settings: Settings
    most_refusals: int = MOST_REFUSALS
    counts: ReleaseCounts = field(default_factory=ReleaseCounts)
    prepared: list[ShardRelease] = field(default_factory=list)
    # The offset after the last staged chunk, by log.
    ends: dict[Log, int] = field(default_factory=lambda: dict.fromkeys(Log, 0))

    @property
    def options(self) -> dict[str, str]:
        """The options of a client of the broker's plain listener."""
        return {"bootstrap.servers": self.broker.bootstrap, "log_level": "0"}

    @property
    def dead_letter(self) -> str:
        """The dead-letter topic."""
        return self.settings.topics.dead_letter

    def change(self, *overrides: str) -> None:
        """Give the next release process other settings."""
        self.settings = _settings(self.settings.kafka.bootstrap_servers, self.settings.application_id, *overrides)

    def hand_over(self, *chunks: pa.Table, log: Log = Log.READY) -> None:
        """Write each of `chunks`, which are in delivery order, as a record of `log`."""
        offsets: list[int] = []

        def written(error: KafkaError | None, message: Message) -> None:
            assert error is None
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

        producer = Producer({**self.options, "message.max.bytes": "100000000", "on_delivery": written})
        for chunk in chunks:
            value, headers = chunk_record(chunk)
            producer.produce(topics_of(self.settings)[log], value, None, 0, headers=headers)
        assert producer.flush(_TIMEOUT_S) == 0
        self.ends[log] = max([self.ends[log], *(offset + 1 for offset in offsets)])

    def prepare(self) -> ShardRelease:
        """Make a release that is not started."""
        context = ReleaseContext(self.settings, "test", most_refusals=self.most_refusals)
        self.counts = context.counts
        self.prepared.append(ShardRelease(context, 0))
        return self.prepared[-1]

    def start(self) -> ShardRelease:
        """Start to release."""
        release = self.prepare()
        release.start()
        return release

    def wait(self, release: ShardRelease) -> None:
        """Wait until `release` has released all staged messages. Raises its error if it ends before."""
        assert_eventually(lambda: release.ended.is_set() or self.is_done(release), _TIMEOUT_S, "the release")
        if release.error is not None:
            raise release.error
        assert not release.ended.is_set(), "the shard was taken"

    def is_done(self, release: ShardRelease) -> bool:
        """Return whether `release` has released all staged messages."""
        position = release.position
        if position is None or not release.drained:
            return False
        return all(position.of(log).lowest >= end for log, end in self.ends.items())

    def release(self, *chunks: pa.Table) -> int:
        """Stage `chunks`, release all staged messages, and return how many messages this released.

        Raises the error of the release.
        """
        before = self.settled()
        self.hand_over(*chunks)
        running = self.start()
        try:
            self.wait(running)
        finally:
            self.stop(running)
        return self.settled() - before

    def stop(self, release: ShardRelease) -> None:
        """Stop `release`, and wait for its end."""
        release.stop()
        release.join()

    @property
    def position(self) -> Position | None:
        """The committed position."""
        return read_position(self.options, self.settings.position_topic, 0)

    @property
    def released(self) -> int:
        """The number of released messages, by the committed position that can be read now."""
        position = self.position
        return 0 if position is None else position.released

    def settled(self) -> int:
        """Return how many messages are released, once no transaction is open: a broker ends it after it says so."""
        topic = self.settings.position_topic
        with _reader(self.broker, "read_committed") as one, _reader(self.broker, "read_uncommitted") as other:
            assert_eventually(lambda: _bounds(one, topic, [0]) == _bounds(other, topic, [0]), _TIMEOUT_S)
        return self.released

    def read(self, topic: str) -> list[Message]:
        """Return the committed records of `topic`, once no transaction is open in it."""
        return committed(self.broker, topic)

    def close(self) -> None:
        """Stop all releases that still run."""
        for release in self.prepared:
            release.stop()
        for release in self.prepared:
            release.join()


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """A function that makes an application with its topics: `make_bench(broker, "release.slice=1s")`."""
    made: list[ReleaseBench] = []

    def make(broker: EmbeddedBroker, *overrides: str) -> ReleaseBench:
        settings = _settings(broker.bootstrap, f"app-{uuid.uuid4().hex[:8]}", *overrides)
        create_topics(
            broker,
            *(NewTopic(topic, 1, 1, config=_LOG) for topic in topics_of(settings).values()),
            NewTopic(settings.position_topic, 1, 1, config=_COMPACTED),
            NewTopic(settings.recalled_topic, 2, 1, config=_COMPACTED),
            NewTopic(settings.topics.output, 1, 1),
            NewTopic(settings.topics.dead_letter, 2, 1),
        )
        made.append(ReleaseBench(broker, settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(broker: EmbeddedBroker, make_bench: MakeBench) -> ReleaseBench:
    """A new application of the broker for all tests."""
    return make_bench(broker)


def _settings(bootstrap: str, application_id: str, *overrides: str) -> Settings:
    own = [
        f"application_id={application_id}",
        f"kafka.bootstrap_servers={bootstrap}",
        "bucket.shards=1",
        "kafka.log_level=0",
    ]
    topics = [f"topics.{role}={application_id}-{role}" for role in ("input", "output", "dead_letter")]
    return load_settings(None, [*own, *topics, *overrides], environ={})


def create_topics(broker: EmbeddedBroker, *topics: NewTopic) -> None:
    """Create topics, and wait until the broker knows them."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": "0"})
    for future in client.create_topics(list(topics)).values():
        future.result()
    names = {topic.topic for topic in topics}
    assert_eventually(lambda: names <= client.list_topics(timeout=10).topics.keys())


@dataclass
class Stop:
    """Stops a release when it passes a point for the n-th time, until the test releases it."""

    passing: int = 1
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def passed(self) -> None:
        """Stop here, if this is the time."""
        self.passing -= 1
        if self.passing == 0:
            self.reached.set()
            assert self.released.wait(_TIMEOUT_S)


StopAt = Callable[..., Stop]


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> StopAt:
    """A function that stops a release at the n-th passing of a failpoint: `stop_at("transaction-filled", 3)`.

    One more is "position-unread": a ring is fenced, and nothing is read.
    """
    stops: dict[str, Stop] = {}
    read, pass_point = ring.read_position, ring.failpoint

    def at(name: str) -> None:
        if name in stops:
            stops[name].passed()

    def reading(options: Mapping[str, str], topic: str, number: int, after_fencing: bool) -> Position | None:
        at("position-unread")
        return read(options, topic, number, after_fencing)

    def passing(name: str) -> None:
        at(name)
        pass_point(name)

    monkeypatch.setattr(ring, "read_position", reading)
    monkeypatch.setattr(ring, "failpoint", passing)

    def make(name: str, passing: int = 1) -> Stop:
        stops.clear()
        stops[name] = Stop(passing)
        return stops[name]

    return make


class HostClock:
    """The clock that a release process reads: `ahead_ms` before the host's."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Return what the clock shows, epoch ms."""
        return _REAL_NOW_MS() + self.ahead_ms


_REAL_NOW_MS = wall_clock.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    """The clock of all release processes of the test, to be set."""
    clock = HostClock()
    for module in (log_consumers, record_check, records, releases, ring, shard, shard_writer, wall_clock):
        monkeypatch.setattr(module, "now_ms", clock.now_ms)
    return clock


@pytest.fixture
def read(broker: EmbeddedBroker) -> Read:
    """A function that returns the committed records of a topic, once no transaction is open in it."""
    return partial(committed, broker)


def values(delivered: Iterable[Message]) -> list[int]:
    """Return the values of records, which are numbers."""
    return [int(message.value() or b"") for message in delivered]


def ids(delivered: Iterable[Message]) -> list[int]:
    """Return the input offsets of records, by their message ids."""
    return [int(str(received(message, 0).id).rsplit("/", 1)[1]) for message in delivered]


def committed(broker: EmbeddedBroker, topic: str) -> list[Message]:
    """Return the committed records of a topic of `broker`, once no transaction is open in it."""

    with _reader(broker, "read_committed") as consumer, _reader(broker, "read_uncommitted") as other:
        numbers = list(consumer.list_topics(topic, 10).topics[topic].partitions)
        assert_eventually(lambda: _bounds(consumer, topic, numbers) == _bounds(other, topic, numbers))
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        records: list[Message] = []
        ends = 0
        while ends < len(numbers):
            message = consumer.poll(20)
            assert message is not None
            if message.error() is None:
                records.append(message)
            else:
                error = message.error()
                assert error is not None
                assert error.name() == "_PARTITION_EOF"
                ends += 1
    return records


@contextmanager
def _reader(broker: EmbeddedBroker, isolation: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "test", "isolation.level": isolation,
         "enable.partition.eof": True, "log_level": 0}
    )  # fmt: skip
    yield consumer
    consumer.close()


def _bounds(client: Consumer, topic: str, numbers: list[int]) -> list[tuple[int, int]]:
    bounds: list[tuple[int, int]] = []

    def known() -> bool:
        try:
            bounds[:] = [client.get_watermark_offsets(TopicPartition(topic, number), 10) for number in numbers]
        except KafkaException as problem:
            # The partitions of a new topic get their leader a moment after it is there.
            if problem.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return False
        return True

    assert_eventually(known, _TIMEOUT_S)
    return bounds


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In how many ids of a waiting chunk each search was."""
    lengths: list[int] = []

    def counting(ascending: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        lengths.append(len(ascending))
        return are_in(ascending, numbers)

    monkeypatch.setattr(waiting_ids, "are_in", counting)
    return lengths


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of each ring that was opened: a new one for each refusal."""
    opened: list[int] = []

    def count(*arguments: Any) -> Ring:
        # Not the ring itself: its producers would stay, and a process has room for a thousand clients.
        opened.append(len(opened))
        return Ring(*arguments)

    monkeypatch.setattr(shard_writer, "Ring", count)
    return opened
