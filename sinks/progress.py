"""The delivery marker: how far each shard's delivery is committed.

It lives in a compacted topic of the service's own, one partition for each shard, written in the very
transaction whose progress it tells. Consumer group offsets would do the same but expire with a job that
rests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable, CheckpointMismatch

_READ_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Progress:
    """Of batch `batch_id` of checkpoint `checkpoint`, the first `messages` due messages are committed."""

    checkpoint: str
    batch_id: int
    messages: int

    def to_bytes(self) -> bytes:
        """Write it as the value of a marker record."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(value: bytes) -> Progress:
        """Read a marker record. Raises CheckpointMismatch if it is none."""
        try:
            progress = Progress(**json.loads(value))
            if [type(part) for part in astuple(progress)] != [str, int, int]:
                raise TypeError("a checkpoint and two whole numbers")
            return progress
        except (TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"the progress topic holds {value[:80]!r}, which is no marker of Delayline; "
                "nothing but the job may write to it"
            ) from problem


def committed_messages(last: Progress | None, checkpoint: str, batch_id: int) -> int:
    """Return how many messages of `batch_id` are committed already: those a replay must skip.

    Raises CheckpointMismatch if a later batch was delivered, as when an old checkpoint was put back.
    """
    if last is None or last.checkpoint != checkpoint or last.batch_id < batch_id:
        return 0
    if last.batch_id > batch_id:
        raise CheckpointMismatch(
            f"batch {last.batch_id} has been delivered, but the checkpoint is at batch {batch_id}; "
            "going on would deliver twice. Put back the newest checkpoint"
        )
    return last.messages


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
