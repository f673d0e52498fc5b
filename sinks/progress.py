"""The progress topic: the markers of how far each shard's delivery is committed.

It is compacted and the service's own, one partition for each shard, written in the very transaction whose progress a
marker tells. Consumer group offsets would do the same but expire with a job that rests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from conf.birth import Birth
from conf.errors import BrokerUnreachable, DeliveryFailed
from conf.progress import BatchSpan, Progress

_READ_TIMEOUT_S = 30.0
_WRITE_TIMEOUT_S = 60.0


def marker_key(shard: int) -> bytes:
    """Return the key of a shard's markers, which lie in the partition of its number."""
    return f"shard-{shard}".encode()


def announce_birth(options: Mapping[str, str], application_id: str, topic: str, birth: Birth) -> None:
    """Write the first marker of each shard of a new checkpoint, all or none. Raises DeliveryFailed.

    From then on the markers say to which records the checkpoint began, whatever becomes of it.
    """
    producer = Producer({**options, "transactional.id": f"{application_id}-birth"})
    marker = Progress(BatchSpan(birth)).to_bytes()
    try:
        producer.init_transactions(_WRITE_TIMEOUT_S)
        producer.begin_transaction()
        for shard in range(birth.shards):
            producer.produce(topic, marker, marker_key(shard), shard)
        producer.commit_transaction(_WRITE_TIMEOUT_S)
    except KafkaException as problem:
        raise DeliveryFailed(f"the new checkpoint could not be announced in {topic}: {problem}") from problem


def read_progress(options: Mapping[str, str], topic: str, shard: int) -> Progress | None:
    """Return the last committed marker of `shard`, or None if it never delivered.

    Reads committed records only, from the end of the partition backwards, so that its cost does not depend on
    how well the topic is compacted. Raises BrokerUnreachable if the partition cannot be read in 30 s.
    """
    consumer = Consumer(
        {
            **options,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "20",
        }
    )
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, shard), timeout=_READ_TIMEOUT_S)
        reach = 16
        while True:
            start = max(low, high - reach)
            last = _last_record(consumer, TopicPartition(topic, shard, start), deadline)
            if last is not None or start == low:
                return None if last is None else Progress.from_bytes(last)
            reach *= 16
    except KafkaException as problem:
        raise BrokerUnreachable(f"the progress of shard {shard} cannot be read from {topic}: {problem}") from problem
    finally:
        consumer.close()


def _last_record(consumer: Consumer, position: TopicPartition, deadline: float) -> bytes | None:
    """Return the value of the last committed record at or after `position`."""
    consumer.assign([position])
    last: bytes | None = None
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            last = message.value()
        elif error.name() == "_PARTITION_EOF":
            return last
        elif not error.retriable():
            raise KafkaException(error)
    raise BrokerUnreachable(f"no end of {position.topic}/{position.partition} within {_READ_TIMEOUT_S:g} s")
