"""Fixtures for the tests of a shard's delivery: a batch, and the committed records of a topic."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from sinks.delivery.transactional_writer import DeliveryPlan
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from streaming.local.broker import EmbeddedBroker
from tests.conftest import MakeTopic
from tests.eventually import assert_eventually

Read = Callable[[str], list[Message]]


@pytest.fixture
def plan(broker: EmbeddedBroker, make_topic: MakeTopic) -> DeliveryPlan:
    """A batch of a new application."""
    return DeliveryPlan(
        application_id=f"app-{uuid.uuid4().hex[:8]}",
        batch=BatchSpan(CheckpointOrigin("c", 1, 1), 1),
        progress_topic=make_topic(**{"cleanup.policy": "compact"}),
        lease_topic=make_topic(**{"cleanup.policy": "compact"}),
        fencing_token=1,
        dead_letter=make_topic(2),
        topics=(),
        slice_ms=100,
        messages_per_second=0,
        transaction_messages=2_000,
        transaction_timeout_ms=10_000,
        outage_limit_ms=60_000,
        tolerates_input_loss=False,
        options={"bootstrap.servers": broker.bootstrap},
    )


@pytest.fixture
def read(broker: EmbeddedBroker) -> Read:
    """A function that returns the committed records of a topic, once no transaction is open in it."""
    return partial(committed, broker)


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

    assert_eventually(lambda: bounds(consumer) == bounds(other))
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
