"""Topics of a real broker, and the content of their records."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from sources.subscriber import received
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually


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
