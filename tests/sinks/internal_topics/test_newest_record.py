"""The newest record of a partition: how long the partition is waited for, and where it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.internal_topics import newest_record

_PARTITION = TopicPartition("lease", 0)


class _Consumer:
    """Answers with one of `errors` after the other, and then with the bounds; if `for_good`, with the first alone."""

    def __init__(self, *errors: int, for_good: bool = False) -> None:
        self.errors, self.for_good = list(errors), for_good

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        if self.errors:
            code = self.errors[0] if self.for_good else self.errors.pop(0)
            raise KafkaException(KafkaError(code))
        return 3, 7


def bounds(consumer: _Consumer, deadline: float) -> tuple[int, int]:
    return newest_record.bounds(cast(Consumer, consumer), _PARTITION, deadline)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which goes on when somebody sleeps."""
    now_s = [100.0]
    monkeypatch.setattr(newest_record.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(newest_record.time, "sleep", lambda seconds: now_s.append(now_s.pop() + seconds))
    return now_s


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    ],
)
def test_a_broker_that_has_just_started_is_given_time_to_know_its_partitions(clock: list[float], code: int) -> None:
    assert bounds(_Consumer(code, code, code), deadline=130.0) == (3, 7)
    assert clock[0] == pytest.approx(100.3)


@pytest.mark.parametrize(
    ("code", "waited_s"), [(KafkaError.UNKNOWN_TOPIC_OR_PART, 3.0), (KafkaError.LEADER_NOT_AVAILABLE, 30.0)]
)
def test_a_topic_that_does_not_exist_is_not_waited_for_as_long_as_a_leader(
    clock: list[float], code: int, waited_s: float
) -> None:
    with pytest.raises(KafkaException):
        bounds(_Consumer(code, for_good=True), deadline=130.0)
    assert clock[0] - 100 == pytest.approx(waited_s, abs=0.2)


def test_no_other_error_is_waited_for(clock: list[float]) -> None:
    with pytest.raises(KafkaException):
        bounds(_Consumer(KafkaError.TOPIC_AUTHORIZATION_FAILED), deadline=130.0)
    assert clock == [100.0]


@dataclass
class _Polled:
    """The result of a consumer's `poll`: a record, or the end of the partition at `at`."""

    at: int
    content: bytes | None = None

    def value(self) -> bytes | None:
        return self.content

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.content is None else None


def test_the_end_of_a_replica_that_lags_behind_is_not_the_end() -> None:
    # Record 6 and the end of its transaction have not reached the replica that answers first.
    polled = iter([_Polled(4, b"4"), _Polled(5), _Polled(6, b"6"), _Polled(7), _Polled(8)])

    class Reader:
        def assign(self, partitions: list[TopicPartition]) -> None:
            assert partitions == [TopicPartition("lease", 0, 3)]

        def poll(self, timeout_s: float) -> _Polled:
            return next(polled)

    start = TopicPartition("lease", 0, 3)
    assert newest_record._last_value(cast(Consumer, Reader()), start, 8, time.monotonic() + 30) == b"6"


def test_no_replica_is_asked_that_may_lag_behind() -> None:
    assert newest_record.reader_options({"client.rack": "a"}, "lease")["client.rack"] == ""
