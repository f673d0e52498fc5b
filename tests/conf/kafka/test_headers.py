"""Reading the headers of records that any client may have written, with a real broker."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from conf.kafka.headers import read_headers
from streaming.local.broker import EmbeddedBroker
from tests.unreadable_headers import write_unreadable

_MANY = 100


def test_headers_come_in_their_order_and_as_bytes(broker: EmbeddedBroker, topic: str) -> None:
    headers: list[tuple[str, str | bytes | None]] = [("b", b"\xff"), ("a", None), ("b", b""), ("\N{SNOWMAN}", b"1")]
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v", headers=headers)
    producer.produce(topic, b"v")
    producer.flush()
    with_headers, without = _read(broker, topic, 2)
    assert read_headers(with_headers) == headers
    assert read_headers(without) == []


def test_names_that_are_not_utf_8_leave_no_exception_and_no_null_pointer(broker: EmbeddedBroker, topic: str) -> None:
    # Often enough for Python to specialise code.
    write_unreadable(broker.bootstrap, topic, b"v", headers=[("a", b"1")], count=_MANY)
    messages = _read(broker, topic, _MANY)
    assert len(messages) == _MANY
    for message in messages:
        assert read_headers(message) is None
        assert read_headers(message) == []


def _read(broker: EmbeddedBroker, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, 20)
    consumer.close()
    return messages
