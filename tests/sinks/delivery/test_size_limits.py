"""Messages that are too large for their topic, against a real broker: which are redirected, and which wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from conf.errors import DeadLetterRefused
from sinks.delivery import shard_delivery, transactional_writer
from sinks.delivery.records import bytes_at_most, record_bytes, records
from sinks.delivery.shard_delivery import deliver
from sinks.delivery.transactional_writer import DeliveryPlan
from sinks.delivery.wall_clock import now_ms
from sinks.topics.limits import TopicLimits
from sources.intake.partitioner import partitions_for
from sources.subscriber import received
from tests.conftest import Configure, MakeTopic
from tests.messages import headers, messages
from tests.sinks.delivery.conftest import Read


@pytest.fixture(autouse=True)
def _no_open_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_delivery, "_open_writers", {})


@pytest.fixture
def plan(plan: DeliveryPlan, make_topic: MakeTopic) -> DeliveryPlan:
    """A batch whose dead-letter topic accepts 20 kB."""
    return replace(plan, dead_letter=make_topic(2, **{"max.message.bytes": "20000"}))


@pytest.fixture
def small(make_topic: MakeTopic) -> str:
    """An output topic that accepts 5 kB."""
    return make_topic(**{"max.message.bytes": "5000"})


@pytest.fixture
def limit(configure: Configure) -> Callable[[str, int], None]:
    """A function that changes a topic's limit."""
    return lambda topic, most: configure(topic, **{"max.message.bytes": str(most)})


def _batch(topic: str, *values: bytes, first: int = 0) -> pa.Table:
    rows = [
        {
            "offset": first + n,
            "deliver_at_ms": 70,
            "timestamp_ms": 30,
            "output_topic": topic,
            "value": value,
            "key": b"k",
        }
        for n, value in enumerate(values)
    ]
    return messages(rows)


def test_a_dead_letter_goes_where_kafkas_own_partitioner_sends_its_key(
    plan: DeliveryPlan, small: str, read: Read
) -> None:
    keys = [b"%d" % n for n in range(20)]
    large = {"deliver_at_ms": 1, "output_topic": small, "value": b"x" * 6_000}
    assert deliver(plan, 0, iter([messages({**large, "offset": n, "key": key} for n, key in enumerate(keys))]))[0] == 20
    landed = {message.key(): message.partition() for message in read(plan.dead_letter)}
    expected = partitions_for(pa.array(keys, pa.binary()), np.zeros(20, np.int64), np.full(20, 2))
    assert [landed[key] for key in keys] == expected.tolist()


def _values(delivered: list[Message]) -> list[bytes]:
    return [message.value() or b"" for message in delivered]


def _ids(delivered: list[Message]) -> set[str | None]:
    return {received(message, 0).id for message in delivered}


def test_a_message_too_large_becomes_a_dead_letter_and_the_rest_follows_in_order_while_the_limit_changes(
    plan: DeliveryPlan, topic: str, limit: Callable[[str, int], None], read: Read
) -> None:
    def go(batch_id: int, due: pa.Table) -> None:
        nonlocal plan
        plan = replace(plan, batch=replace(plan.batch, batch_id=batch_id))
        count, writer = deliver(plan, 0, iter([due]))
        assert count == due.num_rows
        # The next batch uses the same writer, as in the service.
        plan = replace(plan, last_writers={0: writer})

    large, many = b"x" * 6_000, [b"%d" % n for n in range(1_000)]
    go(1, _batch(topic, b"a", large, b"b"))
    limit(topic, 5_000)
    # The client batches many small messages. That their batch is too large must not make them dead letters.
    go(2, _batch(topic, b"c", large, *many, large, b"d", first=10))
    go(3, _batch(topic, b"e", large, b"f", first=2_000))
    limit(topic, 10_000)
    go(4, _batch(topic, b"g", large, first=3_000))

    assert _values(read(topic)) == [b"a", large, b"b", b"c", *many, b"d", b"e", b"f", b"g", large]
    letters = read(plan.dead_letter)
    assert _ids(letters) == {f"delayline-in/0/{offset}" for offset in (11, 1_012, 2_001)}
    assert _values(letters) == [large] * 3
    assert len({message.partition() for message in letters}) == 1, "dead letters of one key in two partitions"
    letter_headers = dict(received(letters[0], 0).headers)
    assert letter_headers["delayline-error"] == b"message-too-large"
    assert b"max.message.bytes of " + topic.encode() + b" is 5000" in (letter_headers["delayline-error-text"] or b"")
    assert "delayline-deliver-at" not in letter_headers
    # If it is resent, its delay counts from then. The record itself is new, so that no topic deletes it for its age.
    assert letter_headers["delayline-timestamp"] == b"30"
    assert letters[0].timestamp()[1] > now_ms() - 600_000


def test_with_compression_only_the_broker_decides_what_is_too_large(plan: DeliveryPlan, small: str, read: Read) -> None:
    plan = replace(plan, options={**plan.options, "compression.type": "lz4"})
    fits, noise = b"0" * 15_000, os.urandom(6_000)
    assert deliver(plan, 0, iter([_batch(small, b"a", fits, noise, b"b", fits, noise)]))[0] == 6
    assert _values(read(small)) == [b"a", fits, b"b", fits]
    assert _values(read(plan.dead_letter)) == [noise, noise]


def test_a_message_too_large_for_the_dead_letter_topic_stops_the_delivery_and_is_not_lost(
    plan: DeliveryPlan, small: str, limit: Callable[[str, int], None], read: Read
) -> None:
    due = _batch(small, b"a", b"x" * 30_000, b"b")
    with pytest.raises(
        DeadLetterRefused, match=rf"delayline-in/0/1 .* takes 30\d+ bytes.*of {plan.dead_letter} is 20000"
    ):
        deliver(plan, 0, iter([due]))
    assert read(small) == read(plan.dead_letter) == []
    limit(plan.dead_letter, 40_000)
    assert deliver(plan, 0, iter([due]), attempt=1)[0] == 3
    assert (_values(read(small)), len(read(plan.dead_letter))) == ([b"a", b"b"], 1)


def test_a_message_too_large_for_a_hidden_limit_is_redirected_and_the_rest_follows_in_order(
    plan: DeliveryPlan, small: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_writer, "read_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    # Together the small messages are too large as well, but none of them is the cause.
    many, large = [b"%d" % n * 500 for n in range(8)], b"x" * 6_000
    assert deliver(plan, 0, iter([_batch(small, *many, large, b"z")]))[0] == 10
    assert _values(read(small)) == [*many, b"z"]
    assert _values(read(plan.dead_letter)) == [large]


@pytest.mark.parametrize("over", [0, 1])
def test_a_record_of_exactly_the_limit_is_delivered(plan: DeliveryPlan, small: str, read: Read, over: int) -> None:
    def due(size: int) -> pa.Table:
        pairs = [("a", None), ("ö" * 80, b"1"), ("", b"")]
        rows = [{"deliver_at_ms": 1, "output_topic": small, "value": b"x" * size, "headers": headers(*pairs)}]
        return messages(rows)

    taken = record_bytes(next(records(due(4_500).to_batches()[0])))
    assert deliver(plan, 0, iter([due(4_500 + 5_000 - taken + over)]))[0] == 1
    assert (len(read(small)), len(read(plan.dead_letter))) == (1 - over, over)


def test_an_upper_bound_of_a_records_bytes_is_never_too_low() -> None:
    rows = [
        {"value": b"x" * size, "key": b"k" * size, "headers": headers(*[("ö" * size, b"v" * size)] * size)}
        for size in (0, 1, 63, 64, 200)
    ] + [{"value": None, "headers": None, "error_code": "bad", "error_text": "e" * 2_000}]
    (batch,) = messages(rows).slice(1).combine_chunks().to_batches()
    exact = [record_bytes(record) for record in records(batch)]
    assert all(most >= size for most, size in zip(bytes_at_most(batch).tolist(), exact, strict=True))
