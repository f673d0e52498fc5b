"""Reads the committed records of a topic of a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually

# A test that waits for transactions to end, or for a release to catch up, fails after this time.
TIMEOUT_S = 60.0


def committed(broker: EmbeddedBroker, topic: str) -> list[Message]:
    """Return the committed records of a topic of `broker`, once no transaction is open in it."""
    with topic_reader(broker, "read_committed") as consumer, topic_reader(broker, "read_uncommitted") as other:
        numbers = list(consumer.list_topics(topic, 10).topics[topic].partitions)
        assert_eventually(lambda: topic_bounds(consumer, topic, numbers) == topic_bounds(other, topic, numbers))
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
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
    return records


@contextmanager
def topic_reader(broker: EmbeddedBroker, isolation: str) -> Iterator[Consumer]:
    """Open a consumer with this isolation level, which tells where partitions end."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "test", "isolation.level": isolation,
         "enable.partition.eof": True, "log_level": 0}
    )  # fmt: skip
    yield consumer
    consumer.close()


def topic_bounds(client: Consumer, topic: str, numbers: list[int]) -> list[tuple[int, int]]:
    """Return where each partition begins and ends, as `client` may read it."""
    bounds: list[tuple[int, int]] = []

    def known() -> bool:
        try:
            bounds[:] = [client.get_watermark_offsets(TopicPartition(topic, number), 10) for number in numbers]
        except KafkaException as problem:
            # The partitions of a new topic get their leader a moment after it is there.
            if problem.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return False
        return True

    assert_eventually(known, TIMEOUT_S)
    return bounds
