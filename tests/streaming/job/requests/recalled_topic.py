"""The recalled topic and input topics as release processes and publishers write them, and their reader."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from conf.setting_types import MINUTE
from conf.settings import Settings
from state.message_ids import ids_of
from state.recalled import Recall, partition_of_shard, recall_records
from streaming.job.requests.recalled import RecalledMessages
from streaming.local.broker import EmbeddedBroker

NOW_MS = time.time_ns() // 1_000_000
# All messages that are recalled here were due before this, unless a test says otherwise.
DUE_MS = NOW_MS - MINUTE
ALL = range(20)
EPOCH = 3


def recall(
    broker: EmbeddedBroker,
    settings: Settings,
    *offsets: int,
    shard: int = 0,
    due_ms: int = DUE_MS,
    epoch: int = EPOCH,
) -> None:
    """Write the records of a release process."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    ids = ids_of((settings.topics.input[0], 0, each) for each in offsets)
    for key, value in recall_records(ids, Recall(due_ms, epoch)):
        producer.produce(settings.recalled_topic, value, key, partition_of_shard(shard))
    assert producer.flush(30) == 0


def publish(broker: EmbeddedBroker, settings: Settings, *minutes_ago: int) -> None:
    """Publish a record to the input topic for each of `minutes_ago`."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for each in minutes_ago:
        producer.produce(settings.topics.input[0], b"x", partition=0, timestamp=NOW_MS - each * MINUTE)
    assert producer.flush(30) == 0


def known(reader: RecalledMessages, settings: Settings) -> list[int]:
    """Return the offsets of the messages that `reader` knows."""
    found = reader.only(ids_of((settings.topics.input[0], 0, each) for each in ALL))
    return [offset for own in found.values() for offset in own.tolist()]


def read(reader: RecalledMessages, settings: Settings) -> list[int]:
    """Let `reader` read, and return the offsets of the messages that it knows."""
    reader.read(NOW_MS)
    return known(reader, settings)


def known_from(reader: RecalledMessages, settings: Settings) -> int:
    """Return the offset from which on `reader` knows messages."""
    assert reader.known_from.keys() == {(settings.topics.input[0], 0)}
    return reader.known_from[settings.topics.input[0], 0]
