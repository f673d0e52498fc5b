"""How a process reports a group that does not take it, and when it gives up. No broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from conf.errors import MembershipRefused
from sinks.group.groups import Group
from sinks.group.refusals import Refusals

_FULL, _FOREIGN = KafkaError(KafkaError.GROUP_MAX_SIZE_REACHED), KafkaError(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
_AWAY = KafkaError(KafkaError._ALL_BROKERS_DOWN)


class _Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def refusals(clock: _Clock) -> Refusals:
    return Refusals(Group("g", "topic", "forwarder", "lanes", "delayline forward"), "north", 20, clock)


def test_each_error_is_logged_once_as_long_as_it_keeps_coming(
    refusals: Refusals, clock: _Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (_FULL, _FULL, _FOREIGN, _FULL):
        refusals.note(error)
        clock.now_s += 3
    assert len(caplog.records) == 2
    clock.now_s += 10
    refusals.note(_FULL)
    assert len(caplog.records) == 3


def test_a_process_that_is_refused_for_longer_than_the_limit_ends(refusals: Refusals, clock: _Clock) -> None:
    for _ in range(7):
        refusals.note(_FULL)
        clock.now_s += 3
    with pytest.raises(MembershipRefused, match=r"group g refuses north: .* raise group.max.size"):
        refusals.note(_FULL)


@pytest.mark.parametrize("ends_by", ["a gap", "a join"])
def test_a_refusal_that_was_over_in_between_begins_again(refusals: Refusals, clock: _Clock, ends_by: str) -> None:
    refusals.note(_FULL)
    assert refusals.sentence is not None
    if ends_by == "a join":
        refusals.joined()
    else:
        clock.now_s += 11
    assert refusals.sentence is None
    clock.now_s += 15
    refusals.note(_FULL)
    clock.now_s += 9
    refusals.note(_FULL)


def test_brokers_that_are_away_end_no_process(refusals: Refusals, clock: _Clock) -> None:
    for _ in range(1_000):
        refusals.note(_AWAY)
        clock.now_s += 3
    assert refusals.sentence is not None
