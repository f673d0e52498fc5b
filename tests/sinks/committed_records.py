"""Reads the committed records of a topic of a real broker."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, TopicPartition

from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually


def committed(broker: EmbeddedBroker, topic: str) -> list[Message]:
    """Return the committed records of a topic of `broker`, once no transaction is open in it."""

    def reader(isolation: str) -> Consumer:
        return Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "test", "isolation.level": isolation,
             "enable.partition.eof": True}
        )  # fmt: skip

    consumer, other = reader("read_committed"), reader("read_uncommitted")
    numbers = list(consumer.list_topics(topic, 10).topics[topic].partitions)
    partitions = [TopicPartition(topic, number, 0) for number in numbers]

    def bounds(client: Consumer) -> list[tuple[int, int]]:
        return [client.get_watermark_offsets(partition, 10) for partition in partitions]

    assert_eventually(lambda: bounds(consumer) == bounds(other), 60, "the end of all transactions")
    consumer.assign(partitions)
    records: list[Message] = []
    ends = 0
    while ends < len(numbers):
        message = consumer.poll(20)
        assert message is not None
        if message.error() is None:
            records.append(message)
        else:
            error = message.error()
            assert error is not None
            assert error.name() == "_PARTITION_EOF"
            ends += 1
    consumer.close()
    other.close()
    return records
