"""Finding records that Spark cannot read, on a real broker that takes any timestamp."""

from __future__ import annotations

from confluent_kafka import Producer

from sources.intake.stamp_check import LAST_MS, Unreadable, unreadable_records
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeSettings, MakeTopic


def test_records_stamped_beyond_what_spark_can_read_are_found_between_the_offsets(
    broker: EmbeddedBroker, make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(2, **{"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for stamps in ([1, LAST_MS, LAST_MS + 1, 1_700_000_000_000_000_000], [5, LAST_MS + 9]):
        producer.begin_transaction()
        for stamp in stamps:
            producer.produce(topic, b"v", partition=1, timestamp=stamp)
        producer.commit_transaction(30)
    settings = make_settings(f"topics.input={topic}")

    def found(start: int, end: int) -> list[Unreadable]:
        return unreadable_records(settings, {topic: {"1": start}}, {topic: {"0": 0, "1": end}})

    first, second, third = (Unreadable(topic, 1, at, stamp) for at, stamp in
                            ((2, LAST_MS + 1), (3, 1_700_000_000_000_000_000), (6, LAST_MS + 9)))  # fmt: skip
    # Offsets 4 and 7 are the marks of the transactions.
    assert found(0, 8) == [first, second, third]
    assert found(0, 3) == [first]
    assert found(3, 5) == [second]
    assert found(4, 6) == found(0, 2) == found(8, 8) == []
    assert str(second) == f"{topic}/1: offset 3 is stamped 1700000000000000000 ms"
