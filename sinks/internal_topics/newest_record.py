"""Reads the newest record of a partition of an internal topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.clients import STARTING_S
from conf.kafka.rights import is_refusal, right_missing

log = logging.getLogger(__name__)

_READ_TIMEOUT_S = 30.0
_NO_LEADER_YET = {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"}
# Also what a broker says that has just started, until it knows its partitions.
NO_SUCH_PARTITION = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}


def newest_value(options: Mapping[str, str], topic: str, partition: int) -> bytes | None:
    """Return the value of the last committed record of `topic`/`partition`, or None if there is none.

    Reads backwards from the end of the partition, so that the cost does not depend on how far the topic is compacted.
    `options` are librdkafka's. Raises TopicMissing, RightMissing, and BrokerUnreachable if the record cannot be read
    within 30 s.
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
            # A consumer that is closed before it has reached its group's coordinator, which it does not need, logs an
            # error.
            "log_level": "2",
        },
        logger=client_log(log),
    )
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        low, high = bounds(consumer, TopicPartition(topic, partition), deadline)
        reach = 16
        while True:
            start = max(low, high - reach)
            last = _last_value(consumer, TopicPartition(topic, partition, start), deadline)
            if last is not None or start == low:
                return last
            reach *= 16
    except KafkaException as problem:
        if is_refusal(problem.args[0]):
            raise right_missing("Read", f"topic {topic}") from problem
        if problem.args[0].name() in NO_SUCH_PARTITION:
            raise TopicMissing(
                f"{topic}/{partition} does not exist: create it with `delayline topics create`"
            ) from problem
        raise BrokerUnreachable(f"{topic}/{partition} cannot be read: {problem}") from problem
    finally:
        consumer.close()


def bounds(consumer: Consumer, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    """Return the offsets of the first and of the next record. Raises KafkaException.

    Waits while the partition's leader changes, until `deadline` (monotonic), and a little for one that is not known.
    """
    known_by = time.monotonic() + STARTING_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=_READ_TIMEOUT_S)
            return low, high
        except KafkaException as problem:
            name = problem.args[0].name()
            waits = (name in _NO_LEADER_YET and time.monotonic() < deadline) or (
                name in NO_SUCH_PARTITION and time.monotonic() < known_by
            )
            if not waits:
                raise
            time.sleep(0.1)


def _last_value(consumer: Consumer, position: TopicPartition, deadline: float) -> bytes | None:
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
        # The login needs no right to the group, which is neither joined nor written to.
        elif not error.retriable() and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error)
    raise BrokerUnreachable(
        f"{position.topic}/{position.partition} cannot be read to its end within {_READ_TIMEOUT_S:g} s"
    )
