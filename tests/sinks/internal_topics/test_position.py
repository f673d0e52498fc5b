"""The position record, and how it is read back from a real broker."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import BrokerUnreachable, CheckpointMismatch, FormatMismatch, TopicMissing
from sinks.internal_topics import newest_record
from sinks.internal_topics.position import (
    Ahead,
    Lateness,
    Log,
    LogPosition,
    Place,
    Position,
    Skipped,
    position_key,
)
from sinks.internal_topics.position_reader import read_position
from state.order import OrderKey
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.eventually import assert_eventually
from tests.thorough import examples

_NUMBER = st.integers(0, 2**62)
_TEXT = st.text(max_size=20)
_KEY = st.builds(OrderKey, _NUMBER, _TEXT, st.integers(0, 99), _NUMBER)
_KEYS = st.none() | _KEY
_LOGS = st.builds(LogPosition, _TEXT, _NUMBER, _NUMBER)
_POSITIONS = st.builds(
    Position, _LOGS, _LOGS, _KEYS, _NUMBER, _NUMBER, _TEXT, _NUMBER,
    st.builds(Lateness, _NUMBER, _NUMBER, _NUMBER, _NUMBER),
    st.lists(st.builds(Ahead, _NUMBER, _NUMBER, _KEY), max_size=2).map(tuple),
    st.lists(st.builds(Skipped, st.sampled_from(Log), _NUMBER, _NUMBER), max_size=2).map(tuple),
)  # fmt: skip
_POSITION = Position(
    LogPosition("id", 12, 10), LogPosition("other", 112, 110), OrderKey(7, "in", 0, 3),
    90, 40, "host-1", 1_000, Lateness(5, 1, 2, 3),
)  # fmt: skip


@given(_POSITIONS)
@settings(max_examples=examples(100))
def test_a_position_is_read_as_it_was_written(position: Position) -> None:
    assert Position.from_bytes(position.to_bytes()) == position


def _below(position: Position, *offsets: int) -> list[OrderKey | None]:
    """Return the keys below which messages are released, at these ready offsets and 100 later in the near log."""
    below = [position.below_at(Place(Log.READY, offset)) for offset in offsets]
    assert below == [position.below_at(Place(Log.NEAR, offset + 100)) for offset in offsets]
    return below


def _taken_in(position: Position, offset: int) -> Position:
    return position.taken_in_to(Log.READY, offset).taken_in_to(Log.NEAR, offset + 100)


def _lowest(offset: int) -> dict[Log, int]:
    return {Log.READY: offset, Log.NEAR: offset + 100}


def test_after_the_clock_was_set_back_new_messages_may_be_due_before_released_ones() -> None:
    back = _POSITION.set_back()
    later = OrderKey(9, "in", 0, 0)
    assert [*_below(back, 11, 12), back.below] == [_POSITION.below, None, None]
    moved = _taken_in(back, 20).moved(OrderKey(5, "in", 0, 0), 91, _lowest(10))
    assert _below(moved, 11, 12, 20) == [_POSITION.below, OrderKey(5, "in", 0, 0), None]
    # Set back once more, by less.
    again = _taken_in(moved.set_back(), 30).moved(OrderKey(4, "in", 0, 0), 92, _lowest(10))
    assert [below.deliver_at_ms for below in _below(again, 11, 12, 20) if below] == [7, 5, 4]
    # It is forgotten when it says nothing more about either log.
    assert again.moved(OrderKey(6, "in", 0, 0), 93, _lowest(10)).ahead == back.ahead
    assert again.moved(later, 93, _lowest(10)).ahead == ()
    assert again.moved(OrderKey(6, "in", 0, 0), 93, _lowest(12)).ahead == ()
    assert again.moved(OrderKey(6, "in", 0, 0), 93, {Log.READY: 12, Log.NEAR: 111}).ahead == back.ahead
    assert Position().set_back() == Position()


def test_skipped_records_are_forgotten_when_reading_begins_behind_them() -> None:
    skipped = Skipped(Log.READY, 10, 12), Skipped(Log.NEAR, 110, 111)
    position = replace(_POSITION, skipped=skipped)
    places = [Place(log, offset) for log in Log for offset in (9, 10, 11, 12, 109, 110, 111)]
    assert [place for place in places if position.skips(place)] == [
        Place(Log.READY, 10), Place(Log.READY, 11), Place(Log.NEAR, 110)
    ]  # fmt: skip
    assert position.moved(None, 91, _lowest(10)).skipped == skipped
    assert position.moved(None, 91, _lowest(11)).skipped == skipped[:1]
    assert position.moved(None, 91, _lowest(12)).skipped == ()


@pytest.mark.parametrize("log", Log)
def test_offsets_used_again_after_a_log_lost_its_end_do_not_count_as_released(log: Log) -> None:
    (other,) = set(Log) - {log}
    before = _POSITION.taken_in_to(log, 100).taken_in_to(other, 100).set_back()
    before = replace(before, skipped=(Skipped(log, 85, 95), Skipped(log, 90, 91), Skipped(other, 85, 95)))
    own = LogPosition("new", taken_in=90, lowest=80)
    ended = before.ending_at(log, own)
    assert ended.skipped == (Skipped(log, 85, 90), Skipped(other, 85, 95))
    assert (ended.of(log), ended.of(other)) == (own, before.of(other))
    taken_in = ended.taken_in_to(log, 95)
    assert [taken_in.below_at(Place(log, offset)) for offset in (89, 90)] == [_POSITION.below, None]
    assert [taken_in.below_at(Place(other, offset)) for offset in (99, 100)] == [_POSITION.below, None]


def _changed(name: str, value: Any) -> bytes:
    return json.dumps({**json.loads(_POSITION.to_bytes()), name: value}).encode()


def test_a_position_of_another_format_names_both() -> None:
    with pytest.raises(FormatMismatch, match=r"a position in the position topic has format 2, but .* reads format 1"):
        Position.from_bytes(_changed("format", 2))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"x", b"\xff", b"7", b"[]", b"null", b"{}", b'{"batch": 1, "messages": 2}',
        _changed("more", 1), _changed("ready", 7), _changed("near", None), _changed("near", {"taken_in": "12"}),
        _changed("ahead", [1]),
        _changed("below", 5), _changed("below", [7, "in", 0]), _changed("lateness", None), _changed("released", 1.5),
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_position_is_refused(value: bytes) -> None:
    with pytest.raises(CheckpointMismatch, match="not a position of this Delayline version"):
        Position.from_bytes(value)


def test_the_last_committed_position_of_a_shard_is_read(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic(2, **{"cleanup.policy": "compact"})
    options = {"bootstrap.servers": broker.bootstrap}
    assert read_position(options, topic, 0) is None
    producer = Producer({**options, "transactional.id": topic})
    producer.init_transactions(30)
    for released, commits in ((1, True), (2, True), (3, False)):
        producer.begin_transaction()
        for shard in (0, 1):
            position = Position(released=100 * shard + released)
            producer.produce(topic, position.to_bytes(), position_key(shard), shard)
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    for shard, released in ((0, 2), (1, 102)):
        last = Position(released=released)
        # A commit is done before it is seen in all partitions.
        assert_eventually(lambda: read_position(options, topic, shard) == last, 60)  # noqa: B023


def test_after_fencing_no_open_transaction_hides_a_newer_position(
    broker: EmbeddedBroker, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    options = {"bootstrap.servers": broker.bootstrap}

    def begun(name: str, released: int) -> Producer:
        producer = Producer({**options, "transactional.id": f"{topic}-{name}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, Position(released=released).to_bytes(), position_key(0), 0)
        assert producer.flush(30) == 0
        return producer

    begun("ring", 1).commit_transaction(30)
    hanging = begun("other", 9)
    begun("ring", 2).commit_transaction(30)
    with monkeypatch.context() as patch:
        patch.setattr(newest_record, "_READ_TIMEOUT_S", 2.0)
        with pytest.raises(BrokerUnreachable, match=f"{topic}/0 .* an open transaction hides the rest"):
            read_position(options, topic, 0, after_fencing=True)
    hanging.abort_transaction(30)
    assert read_position(options, topic, 0, after_fencing=True) == Position(released=2)


def test_a_foreign_record_and_a_missing_topic_are_errors(broker: EmbeddedBroker, make_topic: MakeTopic) -> None:
    topic = make_topic(**{"cleanup.policy": "compact"})
    options = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(options)
    producer.produce(topic, b"hello", b"key", 0)
    assert producer.flush(30) == 0
    with pytest.raises(CheckpointMismatch, match="holds b'hello'"):
        read_position(options, topic, 0)
    with pytest.raises(TopicMissing, match=f"{topic}/1 does not exist"):
        read_position(options, topic, 1)
