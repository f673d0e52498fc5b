"""Finding records that Spark cannot read, on a real broker that accepts any timestamp."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from conf.errors import BrokerUnreachable
from sources.intake.stamp_check import Unreadable, unreadable_records
from state.message import LAST_MS
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings, MakeTopic


def test_records_with_timestamps_that_spark_cannot_read_are_found_between_the_offsets(
    broker: EmbeddedBroker, make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(2, **{"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for timestamps_ms in ([1, LAST_MS, LAST_MS + 1, 1_700_000_000_000_000_000], [-LAST_MS, -LAST_MS - 1]):
        producer.begin_transaction()
        for timestamp_ms in timestamps_ms:
            producer.produce(topic, b"v", partition=1, timestamp=timestamp_ms)
        producer.commit_transaction(30)
    settings = make_settings(f"topics.input={topic}")

    def unreadable(start: int, end: int) -> list[Unreadable]:
        return unreadable_records(settings, {topic: {"1": start}}, {topic: {"0": 0, "1": end}})

    first, second, third = (Unreadable(topic, 1, at, timestamp_ms) for at, timestamp_ms in
                            ((2, LAST_MS + 1), (3, 1_700_000_000_000_000_000), (6, -LAST_MS - 1)))  # fmt: skip
    # Offsets 4 and 7 are the commit markers of the transactions.
    assert unreadable(0, 8) == [first, second, third]
    assert unreadable(0, 3) == [first]
    assert unreadable(3, 5) == [second]
    assert unreadable(4, 6) == unreadable(0, 2) == unreadable(8, 8) == []
    assert str(second) == f"{topic}/1: offset 3 has timestamp 1700000000000000000 ms"


def test_it_stops_after_so_many_finds_and_after_a_minute(
    broker: EmbeddedBroker, make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, **{"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(30):
        producer.produce(topic, b"v", timestamp=LAST_MS + 1)
    assert producer.flush(30) == 0
    settings, ends = make_settings(f"topics.input={topic}"), {topic: {"0": 10_000}}
    found = unreadable_records(settings, {}, ends, most_found=20)
    assert [record.offset for record in found] == list(range(20)), "it does not wait for the rest"
    found = unreadable_records(settings, {}, ends, timeout_s=3.0)
    assert [record.offset for record in found] == list(range(30))
    with pytest.raises(BrokerUnreachable, match="cannot be read to the end"):
        unreadable_records(settings, {topic: {"0": 30}}, ends, timeout_s=3.0)
