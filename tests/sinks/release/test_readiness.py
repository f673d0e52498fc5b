"""When a shard says that it releases messages, and what it counts before. No broker: its ring and its log are fakes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from conf.load import load_settings
from sinks.internal_topics import broker_retry
from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import chunk_record, summary_of
from sinks.release.context import ReleaseContext
from sinks.release.shard import ShardRelease
from sinks.release.waits import Waits
from sinks.release.wall_clock import now_ms
from tests.eventually import assert_eventually
from tests.messages import messages

_HOUR_MS = 3_600_000


class _Ring:
    """A ring that fails with `failure`, if it has one."""

    position = committed = None
    is_worn, longest_open_s = False, 0.0

    def __init__(self) -> None:
        self.failure: KafkaException | None = None

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        pass


class _Logs:
    """Logs with three messages that are due in an hour, and an end that comes when `is_ended` is set."""

    position = Position()

    def __init__(self) -> None:
        self.at_end = False
        self.is_ended = threading.Event()
        self.ends: dict[Log, int] = {}
        value, headers = chunk_record(messages({"offset": n, "deliver_at_ms": now_ms() + _HOUR_MS} for n in range(3)))
        self._left = [(Place(Log.READY, 0), summary_of(headers, "log"), value)]

    @property
    def read_ms(self) -> int:
        return now_ms()

    def read(self, timeout_s: float) -> Iterator[tuple[Place, Any, bytes]]:
        if self._left:
            yield self._left.pop()
        elif self.is_ended.wait(min(timeout_s, 0.01)):
            self.at_end = True

    def __enter__(self) -> _Logs:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Shard(ShardRelease):
    """A release of a shard without a broker."""

    def __init__(self) -> None:
        super().__init__(ReleaseContext(load_settings(None, environ={}), "test", waits=Waits(count=0.01)), 0)
        self.ring: Any = _Ring()
        self.log = _Logs()
        # A new ring is there once brokers answer.
        self.answered = threading.Event()
        self.answered.set()

    def new_ring(self, *_: Any) -> Any:
        self.answered.wait()
        self.ring = _Ring()
        return self.ring

    def _open_reader(self) -> Any:
        return self.log


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Shard]:
    monkeypatch.setattr(broker_retry, "_PAUSE_S", 0.01)
    made = _Shard()
    monkeypatch.setattr("sinks.release.shard_writer.Ring", made.new_ring)
    made.start()
    yield made
    made.answered.set()
    made.stop()
    made.join()
    assert made.error is None
    assert not made.releasing


def test_a_shard_counts_while_it_reads_its_log_and_releases_from_its_end_on(shard: _Shard) -> None:
    assert_eventually(lambda: shard.backlog.messages == 3)
    assert not shard.releasing
    shard.log.is_ended.set()
    assert_eventually(lambda: shard.releasing)


def test_a_shard_that_waits_for_brokers_releases_nothing_until_they_are_back(shard: _Shard) -> None:
    shard.log.is_ended.set()
    assert_eventually(lambda: shard.releasing)
    shard.answered.clear()
    failed = shard.ring
    failed.failure = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert_eventually(lambda: not shard.releasing)
    shard.answered.set()
    assert_eventually(lambda: shard.ring is not failed and shard.releasing)
