"""Topics of a real broker: makes them, and reads their committed records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sources.subscriber import received
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually

# A test that waits for a release to end or to catch up fails after this time.
TIMEOUT_S = 60.0


def create_topics(broker: EmbeddedBroker, *topics: NewTopic) -> None:
    """Create topics, and wait until the broker knows them."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": "0"})
    for future in client.create_topics(list(topics)).values():
        future.result()
    names = {topic.topic for topic in topics}
    assert_eventually(lambda: names <= client.list_topics(timeout=10).topics.keys())


def values(delivered: Iterable[Message]) -> list[int]:
    """Return the values of records, which are numbers."""
    return [int(message.value() or b"") for message in delivered]


def contents(delivered: Iterable[Message]) -> list[bytes]:
    """Return the values of records, as they are."""
    return [message.value() or b"" for message in delivered]


def ids(delivered: Iterable[Message]) -> list[int]:
    """Return the input offsets of records, by their message ids."""
    return [int(str(received(message, 0).id).rsplit("/", 1)[1]) for message in delivered]


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
