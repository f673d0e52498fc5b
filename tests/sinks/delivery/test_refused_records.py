"""Records that a topic does not take as they are, against a real broker: what is redirected, and what waits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from conf.errors import DeadLetterRefused, InjectedFailure
from sinks.delivery import shard_delivery, transactional_writer
from sinks.delivery.shard_delivery import deliver
from sinks.delivery.transactional_writer import DeliveryPlan
from sinks.delivery.wall_clock import now_ms
from sinks.topics.limits import TopicLimits
from sources.dead_letters.letter import read_letter
from sources.subscriber import received
from tests.conftest import Configure, MakeTopic
from tests.messages import headers, messages
from tests.sinks.delivery.conftest import Read

_DAY_MS = 86_400_000
_WEEK = {"message.timestamp.before.max.ms": str(7 * _DAY_MS)}


@pytest.fixture(autouse=True)
def _no_open_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_delivery, "_open_writers", {})


@pytest.fixture(params=["described", "hidden"])
def plan_as_told(plan: DeliveryPlan, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeliveryPlan:
    """A batch whose topics' configuration brokers tell or not; then a refusal alone does."""
    if request.param == "hidden":
        monkeypatch.setattr(transactional_writer, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    return plan


@pytest.fixture
def compacted(make_topic: MakeTopic) -> str:
    """An output topic that demands keys."""
    return make_topic(**{"cleanup.policy": "compact"})


def _due(topic: str, rows: Iterable[dict[str, Any]], first: int = 0) -> pa.Table:
    """Return messages to `topic` whose value is the number of their row; what a row leaves out is the same in all."""
    same = {"output_topic": topic, "key": b"k", "deliver_at_ms": now_ms() - 1_000, "timestamp_ms": 30}
    return messages({**same, "offset": first + n, "value": b"%d" % (first + n), **row} for n, row in enumerate(rows))


def _values(found: Iterable[Message]) -> list[int]:
    return [int(message.value() or b"") for message in found]


def test_a_record_without_a_key_is_a_dead_letter_where_keys_are_demanded_and_the_rest_goes_on_in_order(
    plan_as_told: DeliveryPlan, topic: str, compacted: str, read: Read, configure: Configure
) -> None:
    plan = plan_as_told
    bad, own = {"key": None}, {"headers": headers(("trace", b"7"), ("trace", None))}
    elsewhere = {"output_topic": topic, "key": None}
    due = _due(compacted, [{}, elsewhere, {**bad, **own}, {}, bad, elsewhere, {}, bad])
    count, writer = deliver(plan, 0, iter([due]))
    assert count == 8
    # The next batch goes on with the same writer, as in the service.
    plan = replace(plan, batch=replace(plan.batch, batch_id=2), last_writers={0: writer})
    count, writer = deliver(plan, 0, iter([_due(compacted, [{}, bad, {}], first=8)]))
    assert count == 3
    # What a topic demands may change while the job runs.
    configure(topic, **{"cleanup.policy": "compact"})
    plan = replace(plan, batch=replace(plan.batch, batch_id=3), last_writers={0: writer})
    assert deliver(plan, 0, iter([_due(topic, [{}, bad, {}], first=11)]))[0] == 3

    assert _values(read(compacted)) == [0, 3, 6, 8, 10]
    assert _values(read(topic)) == [1, 5, 11, 13]
    letters = {int(record.value() or b""): record for record in read(plan.dead_letter)}
    assert sorted(letters) == [2, 4, 7, 9, 12]
    assert letters[2].timestamp()[1] > now_ms() - 600_000
    told = read_letter(received(letters[2], 0))
    assert told is not None
    assert (told.id, told.code, told.timestamp_ms, told.key) == ("delayline-in/0/2", "record-refused", 30, None)
    assert told.headers == [("trace", b"7"), ("trace", None)]
    assert re.match(rf"record-refused: .*{compacted}.*", told.text)
    assert "cleanup.policy" in told.text


@pytest.mark.parametrize("bad", [{3}, {0, 3, 4, 9}, set(range(10))])
def test_a_record_whose_time_is_too_long_past_for_its_topic_is_a_dead_letter_and_the_rest_goes_on_in_order(
    plan_as_told: DeliveryPlan, make_topic: MakeTopic, read: Read, bad: set[int]
) -> None:
    plan = plan_as_told
    topic = make_topic(**_WEEK)
    # `deliver-at` in seconds, where ms are meant.
    due = _due(topic, [{"deliver_at_ms": 1_798_135_200} if n in bad else {} for n in range(10)])
    assert deliver(plan, 0, iter([due]))[0] == 10
    assert _values(read(topic)) == [n for n in range(10) if n not in bad]
    letters = read(plan.dead_letter)
    assert sorted(_values(letters)) == sorted(bad)
    told = read_letter(received(letters[0], 0))
    assert told is not None
    assert told.code == "record-refused"
    assert "message.timestamp.before.max.ms" in told.text


def test_a_topic_that_stamps_by_itself_takes_what_is_long_past(
    plan_as_told: DeliveryPlan, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(**_WEEK, **{"message.timestamp.type": "LogAppendTime"})
    assert deliver(plan_as_told, 0, iter([_due(topic, [{"deliver_at_ms": 1}, {}])]))[0] == 2
    assert _values(read(topic)) == [0, 1]


def test_what_lay_too_long_is_redirected_transaction_by_transaction_and_all_of_it_once(
    plan: DeliveryPlan, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(2, **_WEEK)
    old = now_ms() - 8 * _DAY_MS
    late = _due(topic, [{"deliver_at_ms": old, "output_partition": n % 2} for n in range(6_000)])
    good = _due(topic, [{"output_partition": n % 2} for n in range(1_000)], first=6_000)
    assert deliver(plan, 0, iter([late, good]))[0] == 7_000
    found = read(topic)
    for number in range(2):
        assert _values(each for each in found if each.partition() == number) == [*range(6_000 + number, 7_000, 2)]
    assert sorted(_values(read(plan.dead_letter))) == [*range(6_000)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_record_that_is_too_early_for_its_topic_is_written_again_when_it_is_due(
    plan_as_told: DeliveryPlan, make_topic: MakeTopic, read: Read, count: int
) -> None:
    plan = plan_as_told
    topic = make_topic(**{"message.timestamp.after.max.ms": "0"})
    soon = now_ms() + 2_000
    due = _due(topic, [{"deliver_at_ms": soon + n} for n in range(count)])
    assert deliver(plan, 0, iter([due]))[0] == count
    assert [message.timestamp()[1] for message in read(topic)] == [soon + n for n in range(count)]
    assert read(plan.dead_letter) == []


@pytest.mark.parametrize("point", ["transaction-open", "transaction-committed"])
def test_a_crash_among_refusals_changes_nothing_of_what_comes_out(
    plan_as_told: DeliveryPlan, compacted: str, read: Read, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    plan = plan_as_told

    def crash(name: str, attempt: int = 0) -> None:
        if name == point and not attempt:
            raise InjectedFailure(name)

    monkeypatch.setattr(transactional_writer, "failpoint", crash)
    plan = replace(plan, transaction_messages=5)
    go = partial(deliver, plan, 0)
    due = _due(compacted, [{} if n % 3 else {"key": None} for n in range(20)])
    with pytest.raises(InjectedFailure):
        go(iter([due]))
    done = len(read(compacted)) + len(read(plan.dead_letter))
    assert (done > 0) == (point == "transaction-committed")
    assert go(iter([due]), attempt=1)[0] == 20 - done
    assert go(iter([due]), attempt=2)[0] == 0
    assert _values(read(compacted)) == [n for n in range(20) if n % 3]
    assert sorted(_values(read(plan.dead_letter))) == [*range(0, 20, 3)]


@pytest.mark.parametrize("redirected", [True, False])
def test_a_dead_letter_that_its_topic_refuses_as_well_stops_the_delivery_and_is_not_lost(
    plan_as_told: DeliveryPlan, compacted: str, read: Read, configure: Configure, redirected: bool
) -> None:
    plan = plan_as_told
    configure(plan.dead_letter, **{"cleanup.policy": "compact"})
    told = {"output_topic": plan.dead_letter, "error_code": "bad-deliver-at", "error_text": "no instant"}
    due = _due(compacted, [{}, {"key": None, **({} if redirected else told)}, {}])
    says = rf"message delayline-in/0/1 can go nowhere: record-refused: .*{plan.dead_letter}.*"
    with pytest.raises(DeadLetterRefused, match=says):
        deliver(plan, 0, iter([due]))
    done = _values(read(compacted))
    assert done in ([], [0])
    assert read(plan.dead_letter) == []
    configure(plan.dead_letter, **{"cleanup.policy": "delete"})
    assert deliver(plan, 0, iter([due]), attempt=1)[0] == 3 - len(done)
    assert (_values(read(compacted)), _values(read(plan.dead_letter))) == ([0, 2], [1])
