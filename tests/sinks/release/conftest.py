"""Fixtures for the tests of the release stage: applications, failpoints, a clock, and what a release does."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic

from sinks.internal_topics.position import Position, topics_of
from sinks.release import (
    closed_topics,
    known_topics,
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
from sinks.release.ring import Ring
from sinks.topics.limits import TopicLimits
from state.message_ids import are_in
from streaming.local.broker import EmbeddedBroker
from tests.conftest import Configure, MakeTopic
from tests.sinks.committed_records import TIMEOUT_S, committed
from tests.sinks.release.bench import ReleaseBench, bench_settings
from tests.sinks.release.made_up_broker import MadeUpBroker
from tests.sinks.release.topic_records import create_topics

Read = Callable[[str], list[Message]]
MakeBench = Callable[..., ReleaseBench]
_COMPACTED = {"cleanup.policy": "compact"}
# A chunk is as large as a broker takes a request.
_LOG = {"retention.ms": "-1", "max.message.bytes": "100000000"}


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """A function that makes an application with its topics: `make_bench(broker, "release.slice=1s")`."""
    made: list[ReleaseBench] = []

    def make(broker: EmbeddedBroker, *overrides: str) -> ReleaseBench:
        settings = bench_settings(broker.bootstrap, f"app-{uuid.uuid4().hex[:8]}", *overrides)
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


@pytest.fixture
def limit(configure: Configure) -> Callable[[str, int], None]:
    """A function that changes a topic's limit."""
    return lambda topic, most: configure(topic, **{"max.message.bytes": str(most)})


@pytest.fixture
def small(make_topic: MakeTopic) -> str:
    """An output topic that accepts 5 kB."""
    return make_topic(**{"max.message.bytes": "5000"})


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides what the topics accept, so that only a refusal shows it."""
    monkeypatch.setattr(known_topics, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))


@pytest.fixture(params=["described", "hidden"])
def visible_or_hidden(bench: ReleaseBench, request: pytest.FixtureRequest) -> ReleaseBench:
    """An application with topics that show their limits, or hide them so that only a refusal shows them."""
    if request.param == "hidden":
        request.getfixturevalue("hidden")
    return bench


@pytest.fixture
def compacted(make_topic: MakeTopic) -> str:
    """An output topic that requires keys."""
    return make_topic(**{"cleanup.policy": "compact"})


@pytest.fixture
def broker_says(monkeypatch: pytest.MonkeyPatch) -> MadeUpBroker:
    """The broker's answers, which a test may change."""
    broker = MadeUpBroker()
    monkeypatch.setattr(closed_topics, "topic_access", broker.access)
    monkeypatch.setattr(closed_topics, "time", broker)
    return broker


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
            assert self.released.wait(TIMEOUT_S)


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
