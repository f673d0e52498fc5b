"""The retries of reading a shard's ready log, by a clock of their own."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from conf.errors import BrokerUnreachable
from conf.load import load_settings
from sinks.internal_topics import broker_retry
from sinks.internal_topics.position import Log, Position
from sinks.release import shard
from sinks.release.context import ReleaseContext
from sinks.release.log_reader import LogReader
from sinks.release.pending import Pending
from sinks.release.shard import ShardRelease


class _Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class _Reader:
    """A shard without records. Its broker is away from time to time."""

    def __init__(self) -> None:
        self.is_away = True
        self.ends = dict.fromkeys(Log, 0)

    def read(self, _: float) -> list[Any]:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        return []


def test_an_idle_shard_waits_through_each_outage_for_as_long_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reader = _Clock(), _Reader()
    monkeypatch.setattr(broker_retry, "time", clock)
    monkeypatch.setattr(shard, "time", clock)
    release = ShardRelease(ReleaseContext(load_settings(None, ["kafka.outage_limit=100s"], environ={}), "test"), 0)

    def take(seconds: int) -> None:
        for _ in range(seconds):
            before_s = clock.now_s
            release._take(cast(LogReader, reader), Pending(Position()), 0)
            clock.now_s = max(clock.now_s, before_s + 1)

    take(90)
    reader.is_away = False
    take(200)
    reader.is_away = True
    take(90)
    with pytest.raises(BrokerUnreachable, match="no broker answered for 100 s"):
        take(20)
