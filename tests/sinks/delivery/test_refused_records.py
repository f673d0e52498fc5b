"""Records that a topic refuses, against a real broker: which are redirected, and which wait."""

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
def visible_or_hidden_plan(
    plan: DeliveryPlan, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> DeliveryPlan:
    """A batch whose topics' limits are visible, or hidden so that only a refusal shows them."""
    if request.param == "hidden":
        monkeypatch.setattr(transactional_writer, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    return plan


@pytest.fixture
def compacted(make_topic: MakeTopic) -> str:
    """An output topic that requires keys."""
    return make_topic(**{"cleanup.policy": "compact"})


def _due(topic: str, rows: Iterable[dict[str, Any]], first: int = 0) -> pa.Table:
    """Return messages to `topic` with their row numbers as values. A row changes the columns that it names."""
    defaults = {"output_topic": topic, "key": b"k", "deliver_at_ms": now_ms() - 1_000, "timestamp_ms": 30}
    return messages(
        {**defaults, "offset": first + n, "value": b"%d" % (first + n), **row} for n, row in enumerate(rows)
    )


def _values(records: Iterable[Message]) -> list[int]:
    return [int(message.value() or b"") for message in records]


def test_a_record_without_a_key_becomes_a_dead_letter_if_keys_are_required_and_the_rest_follows_in_order(
    visible_or_hidden_plan: DeliveryPlan, topic: str, compacted: str, read: Read, configure: Configure
) -> None:
    plan = visible_or_hidden_plan
    bad, traced = {"key": None}, {"headers": headers(("trace", b"7"), ("trace", None))}
    elsewhere = {"output_topic": topic, "key": None}
    due = _due(compacted, [{}, elsewhere, {**bad, **traced}, {}, bad, elsewhere, {}, bad])
    count, writer = deliver(plan, 0, iter([due]))
    assert count == 8
    # The next batch uses the same writer, as in the service.
    plan = replace(plan, batch=replace(plan.batch, batch_id=2), last_writers={0: writer})
    count, writer = deliver(plan, 0, iter([_due(compacted, [{}, bad, {}], first=8)]))
    assert count == 3
    # What a topic requires may change while the job runs.
    configure(topic, **{"cleanup.policy": "compact"})
    plan = replace(plan, batch=replace(plan.batch, batch_id=3), last_writers={0: writer})
    assert deliver(plan, 0, iter([_due(topic, [{}, bad, {}], first=11)]))[0] == 3

    assert _values(read(compacted)) == [0, 3, 6, 8, 10]
    assert _values(read(topic)) == [1, 5, 11, 13]
    letters = {int(record.value() or b""): record for record in read(plan.dead_letter)}
    assert sorted(letters) == [2, 4, 7, 9, 12]
    assert letters[2].timestamp()[1] > now_ms() - 600_000
    letter = read_letter(received(letters[2], 0))
    assert letter is not None
    assert (letter.id, letter.code, letter.timestamp_ms, letter.key) == ("delayline-in/0/2", "record-refused", 30, None)
    assert letter.headers == [("trace", b"7"), ("trace", None)]
    assert re.match(rf"record-refused: .*{compacted}.*", letter.text)
    assert "cleanup.policy" in letter.text


@pytest.mark.parametrize("bad", [{3}, {0, 3, 4, 9}, set(range(10))])
def test_a_record_too_old_for_its_topic_becomes_a_dead_letter_and_the_rest_follows_in_order(
    visible_or_hidden_plan: DeliveryPlan, make_topic: MakeTopic, read: Read, bad: set[int]
) -> None:
    plan = visible_or_hidden_plan
    topic = make_topic(**_WEEK)
    # `deliver-at` in seconds, where ms are meant.
    due = _due(topic, [{"deliver_at_ms": 1_798_135_200} if n in bad else {} for n in range(10)])
    assert deliver(plan, 0, iter([due]))[0] == 10
    assert _values(read(topic)) == [n for n in range(10) if n not in bad]
    letters = read(plan.dead_letter)
    assert sorted(_values(letters)) == sorted(bad)
    letter = read_letter(received(letters[0], 0))
    assert letter is not None
    assert letter.code == "record-refused"
    assert "message.timestamp.before.max.ms" in letter.text


def test_a_topic_with_log_append_time_accepts_old_records(
    visible_or_hidden_plan: DeliveryPlan, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(**_WEEK, **{"message.timestamp.type": "LogAppendTime"})
    assert deliver(visible_or_hidden_plan, 0, iter([_due(topic, [{"deliver_at_ms": 1}, {}])]))[0] == 2
    assert _values(read(topic)) == [0, 1]


def test_many_records_too_old_for_their_topic_are_redirected_exactly_once_over_several_transactions(
    plan: DeliveryPlan, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(2, **_WEEK)
    old = now_ms() - 8 * _DAY_MS
    late = _due(topic, [{"deliver_at_ms": old, "output_partition": n % 2} for n in range(6_000)])
    good = _due(topic, [{"output_partition": n % 2} for n in range(1_000)], first=6_000)
    assert deliver(plan, 0, iter([late, good]))[0] == 7_000
    records = read(topic)
    for number in range(2):
        assert _values(each for each in records if each.partition() == number) == [*range(6_000 + number, 7_000, 2)]
    assert sorted(_values(read(plan.dead_letter))) == [*range(6_000)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_record_too_early_for_its_topic_is_written_again_when_it_is_due(
    visible_or_hidden_plan: DeliveryPlan, make_topic: MakeTopic, read: Read, count: int
) -> None:
    plan = visible_or_hidden_plan
    topic = make_topic(**{"message.timestamp.after.max.ms": "0"})
    soon = now_ms() + 2_000
    due = _due(topic, [{"deliver_at_ms": soon + n} for n in range(count)])
    assert deliver(plan, 0, iter([due]))[0] == count
    assert [message.timestamp()[1] for message in read(topic)] == [soon + n for n in range(count)]
    assert read(plan.dead_letter) == []


@pytest.mark.parametrize("point", ["transaction-open", "transaction-committed"])
def test_a_crash_among_refusals_does_not_change_the_output(
    visible_or_hidden_plan: DeliveryPlan, compacted: str, read: Read, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    plan = visible_or_hidden_plan

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
def test_a_dead_letter_that_its_topic_refuses_too_stops_the_delivery_and_is_not_lost(
    visible_or_hidden_plan: DeliveryPlan, compacted: str, read: Read, configure: Configure, redirected: bool
) -> None:
    plan = visible_or_hidden_plan
    configure(plan.dead_letter, **{"cleanup.policy": "compact"})
    rejected = {"output_topic": plan.dead_letter, "error_code": "bad-deliver-at", "error_text": "no instant"}
    due = _due(compacted, [{}, {"key": None, **({} if redirected else rejected)}, {}])
    pattern = rf"message delayline-in/0/1 can go nowhere: record-refused: .*{plan.dead_letter}.*"
    with pytest.raises(DeadLetterRefused, match=pattern):
        deliver(plan, 0, iter([due]))
    done = _values(read(compacted))
    assert done in ([], [0])
    assert read(plan.dead_letter) == []
    configure(plan.dead_letter, **{"cleanup.policy": "delete"})
    assert deliver(plan, 0, iter([due]), attempt=1)[0] == 3 - len(done)
    assert (_values(read(compacted)), _values(read(plan.dead_letter))) == ([0, 2], [1])
