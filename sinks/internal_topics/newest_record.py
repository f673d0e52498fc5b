"""Reads the newest record of a partition of an internal topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.clients import STARTING_S
from conf.kafka.error_codes import is_transient_read
from conf.kafka.rights import is_refusal, right_missing

log = logging.getLogger(__name__)

_READ_TIMEOUT_S = 30.0
_NO_LEADER_YET = {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"}
# A broker that has just started also answers with these, until it knows its partitions.
NO_SUCH_PARTITION = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}


def newest_value(
    options: Mapping[str, str],
    topic: str,
    partition: int,
    after_fencing: bool = False,
    is_own: Callable[[bytes | None], bool] = lambda _: True,
) -> bytes | None:
    """Return the value of the last committed record of `topic`/`partition`, or None without such a record.

    Reads backwards from the end of the partition, so that the cost does not depend on how far the topic is compacted.
    `options` are librdkafka's. `after_fencing` says that all earlier writers are fenced, so that no transaction is
    open. A transaction that is still open hides newer records, and then the partition cannot be read to its end.
    Ignores records that Delayline did not write by `is_own`, with a warning.

    Raises TopicMissing, RightMissing, and BrokerUnreachable if the record cannot be read within 30 s.
    """
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        with closing(Consumer(reader_options(options, topic), logger=client_log(log))) as consumer:
            low, high = bounds(consumer, TopicPartition(topic, partition), deadline)
            reach = 16
            while True:
                start = max(low, high - reach)
                position = TopicPartition(topic, partition, start)
                last = _last_value(consumer, position, high, deadline, after_fencing, is_own)
                if last is not None or start == low:
                    return last
                reach *= 16
    except KafkaException as problem:
        if is_refusal(problem.args[0]):
            raise right_missing("Read", f"topic {topic}") from problem
        if problem.args[0].name() in NO_SUCH_PARTITION:
            raise TopicMissing(
                f"{topic}/{partition} does not exist. Create it with `delayline topics create`"
            ) from problem
        raise BrokerUnreachable(f"{topic}/{partition} cannot be read: {problem}") from problem


def reader_options(options: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return the options of a consumer that reads the newest records of `topic`."""
    return {
        **options,
        "group.id": f"{topic}-reader",
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": "true",
        "fetch.wait.max.ms": "20",
        # With a rack, a follower may answer, which does not have the newest record yet.
        "client.rack": "",
        # A consumer that is closed before it has reached its group's coordinator, which it does not need, logs an
        # error.
        "log_level": "2",
    }


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


def _last_value(
    consumer: Consumer,
    position: TopicPartition,
    high: int,
    deadline: float,
    after_fencing: bool = False,
    is_own: Callable[[bytes | None], bool] = lambda _: True,
) -> bytes | None:
    """Return the value of the last committed record at or after `position`, once all below offset `high` are read.

    The first end of the partition may lie below: a replica may lag behind. To a reader of committed records, the
    partition ends before an open transaction. `after_fencing` demands that it ends nowhere but behind all records.
    """
    consumer.assign([position])
    last: bytes | None = None
    # Where the partition has ended. The client says it once for each offset.
    at = -1
    while time.monotonic() < deadline:
        message = consumer.poll(1.0 if at < high else 0.1)
        error = None if message is None else message.error()
        if message is not None and error is None:
            at = -1
            if is_own(message.value()):
                last = message.value()
            else:
                log.warning(
                    "ignoring a record that Delayline did not write, %s/%d at offset %d. Only Delayline may write to "
                    "this topic",
                    position.topic, position.partition, message.offset(),
                )  # fmt: skip
        elif error is None or error.name() == "_PARTITION_EOF":
            at = at if message is None else message.offset() or 0
            # The end of all records, as the newest fetch has shown it; below 0 if that has failed.
            end = consumer.get_watermark_offsets(position, cached=True)[1] if after_fencing else high
            if at >= high and 0 <= end <= at:
                return last
        elif not is_transient_read(error):
            raise KafkaException(error)
    raise BrokerUnreachable(
        f"could not read {position.topic}/{position.partition} up to offset {high} within "
        f"{_READ_TIMEOUT_S:g} s. Either brokers do not answer, or an open transaction hides the rest. "
        "`kafka-transactions.sh find-hanging` lists hanging transactions"
    )
