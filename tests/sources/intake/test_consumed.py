"""The records that librdkafka consumes are those that Spark reads."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark.sql import SparkSession

from conf.kafka.headers import RecordHeaders
from conf.sections import MOST_MESSAGE_BYTES
from sources.intake.consumed import records_of
from sources.intake.kafka_reader import read_range
from state.message import LAST_MS
from streaming.local.broker import EmbeddedBroker
from tests.unreadable_headers import write_unreadable


def consumed(broker: EmbeddedBroker, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages: list[Message] = []
        while len(messages) < count:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            messages.append(message)
        return messages
    finally:
        consumer.close()


def test_the_table_is_the_one_that_spark_reads(
    spark: SparkSession, broker: EmbeddedBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(**{"max.message.bytes": str(2 * MOST_MESSAGE_BYTES)})
    client = {"bootstrap.servers": broker.bootstrap, "compression.type": "zstd", "message.max.bytes": 10**9}
    producer = Producer(client)
    too_large = b"x" * (MOST_MESSAGE_BYTES + 1)
    records: list[tuple[bytes | None, bytes | None, RecordHeaders | None, int]] = [
        (b"k", b"v", [("deliver-after", b"1s"), ("deliver-after", None), ("", b"")], 1_700_000_000_123),
        (None, None, None, 0),
        (b"", b"", [], -1),
        (b"k", b"v", [("Größe", b"\xff\x00")], 5),
        (b"k", too_large, [("x", b"1")], 5),
        (too_large, b"v", None, 5),
    ]
    for key, value, headers, stamp in records:
        producer.produce(topic, value, key, 0, timestamp=stamp, headers=headers)
        producer.flush()
    table = records_of(consumed(broker, topic, 6))
    assert table.num_rows == 6
    frame = read_range(spark, {"bootstrap.servers": broker.bootstrap}, [topic], {topic: {"0": 0}}, {topic: {"0": 6}})
    expected = frame.toArrow().sort_by("offset")
    columns = expected.column_names
    for name in columns:
        assert table.column(name).to_pylist() == expected.column(name).to_pylist(), name
    assert table.select(columns).schema.names == expected.schema.names


def test_what_only_spark_reads_is_left_out(broker: EmbeddedBroker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    write_unreadable(broker.bootstrap, topic, b"v", headers=[("deliver-after", b"1s")])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"in nanoseconds", timestamp=LAST_MS + 1)
    producer.produce(topic, b"last", timestamp=LAST_MS, headers=[("x", b"1")])
    producer.flush()
    assert records_of(consumed(broker, topic, 3)).column("value").to_pylist() == [b"last"]


def test_no_records_are_an_empty_table() -> None:
    assert records_of([]).num_rows == 0
