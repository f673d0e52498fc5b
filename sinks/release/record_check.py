"""Whether a topic accepts a record, and which dead letter replaces one that it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DeadLetterRefused, MessageTooLarge, RecordRefused, Rejected
from sinks.release.records import Record, as_dead_letter, record_bytes, record_id
from sinks.release.wall_clock import now_ms
from sinks.topics.limits import NO_LIMIT, TopicLimits

# What topics refused of a transaction, and the error of each: by topic and message id.
Refusals = Mapping[tuple[str, bytes], Rejected]
# librdkafka's own limit of a batch of records.
_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class RecordCheck:
    """What is known when a transaction is written: what the topics accept, and what they refused before.

    A client that `compresses` may bring a record below a limit that its uncompressed size exceeds. Only the broker can
    decide that, so such a record is tried.
    """

    limits: Mapping[str, TopicLimits]
    dead_letter: str
    compresses: bool
    refused: Refusals

    def admits_all(self, batch: pa.RecordBatch, largest_bytes: int) -> bool:
        """Return, a column at a time, whether all messages can be written as they are.

        They are in order, and their largest record takes `largest_bytes` at most.
        """
        if self.refused or largest_bytes > smallest(sizes(self.limits)):
            return False
        age_ms = min(each.max_age_ms // 2 for each in self.limits.values())
        if batch.column("deliver_at_ms")[0].as_py() < now_ms() - age_ms:
            return False
        keyed = pa.array([topic for topic, each in self.limits.items() if each.needs_key], pa.string())
        if not len(keyed) or not batch.column("key").null_count:
            return True
        without_key = batch.column("output_topic").filter(batch.column("key").is_null())
        return not pc.any(pc.is_in(without_key, keyed)).as_py()

    def admitted(self, record: Record, timestamp_ms: int) -> Record:
        """Return `record`, or the dead letter that takes its place. Raises DeadLetterRefused if that is refused too.

        `timestamp_ms` (epoch ms) is that of the input record.
        """
        # Half of the age, since the broker's clock may be ahead of this one.
        if record.timestamp_ms < now_ms() - self.limits[record.topic].max_age_ms // 2:
            record = record._replace(timestamp_ms=now_ms())
        error = self._objection(record)
        if error is None:
            return record
        if record.topic != self.dead_letter:
            letter = as_dead_letter(record, timestamp_ms, self.dead_letter, error)
            error = self._objection(letter)
            if error is None:
                return letter
            record = letter
        raise DeadLetterRefused(
            f"message {record_id(record).decode()} can go nowhere: {error}. Change that of the dead-letter topic "
            f"(kafka-configs.sh --alter --topic {self.dead_letter} --add-config ...), and start the job again. "
            "Nothing is lost"
        )

    def is_tried(self, record: Record) -> bool:
        """Return whether the broker may find the record too large, although `admitted` returned it."""
        return self.compresses and record_bytes(record) > self.limits[record.topic].max_bytes

    def _objection(self, record: Record) -> Rejected | None:
        """Return why the record's topic refuses it, or None if no reason is known."""
        _, topic, _, key, _, _ = record
        limits = self.limits[topic]
        if self.refused and (known := self.refused.get((topic, record_id(record)))):
            return known
        if key is None and limits.needs_key:
            return RecordRefused(f"the record has no key, and cleanup.policy of {topic} is compact")
        size = record_bytes(record)
        if size <= limits.max_bytes or self.compresses:
            return None
        return MessageTooLarge(f"the record takes {size} bytes, and max.message.bytes of {topic} is {limits.max_bytes}")


def sizes(limits: Mapping[str, TopicLimits]) -> dict[str, int]:
    """Return the largest batch that each topic takes, in bytes."""
    return {topic: each.max_bytes for topic, each in limits.items()}


def compresses(options: Mapping[str, str]) -> bool:
    """Return whether a producer with these options of librdkafka compresses."""
    return any(options.get(name, "none") != "none" for name in ("compression.type", "compression.codec"))


def largest_batch(options: Mapping[str, str], limits: Mapping[str, int]) -> int:
    """Return how many bytes a producer with these options of librdkafka may batch, so that every topic takes them."""
    return min(int(options.get("batch.size", _BATCH_BYTES)), smallest(limits))


def smallest(limits: Mapping[str, int]) -> int:
    """Return the smallest of the limits, in bytes."""
    return min(limits.values(), default=NO_LIMIT)
