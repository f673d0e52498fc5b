"""Whether a record fits its topic, and what goes to the dead-letter topic in its place."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from conf.errors import DeadLetterRefused, MessageTooLarge
from sinks.records import Record, as_dead_letter, record_bytes, record_id
from sinks.topic_limits import NO_LIMIT

# A topic, and the id of a message that it refused.
Refusal = tuple[str, bytes]
# librdkafka's own limit of a batch of records.
_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class SizeCheck:
    """What is known when a transaction is written: the topics' limits in bytes, and what was refused before.

    A client that `compresses` may bring a record below a limit that it is over as it is: only the broker can tell, so
    that such a record is tried.
    """

    limits: Mapping[str, int]
    dead_letter: str
    compresses: bool
    refused: Set[Refusal]

    def fitted(self, record: Record, timestamp_ms: int) -> Record:
        """Return `record`, or the dead letter that takes its place. Raises DeadLetterRefused if that is too large.

        `timestamp_ms` (epoch ms) is that of the input record.
        """
        topic = record[1]
        if self._takes(record):
            return record
        size = record_bytes(record)
        if topic != self.dead_letter:
            error = MessageTooLarge(f"the record takes {size} bytes, and {self._limit_of(topic)}")
            letter = as_dead_letter(record, timestamp_ms, self.dead_letter, error)
            if self._takes(letter):
                return letter
            size = record_bytes(letter)
        raise DeadLetterRefused(
            f"message {record_id(record).decode()} takes {size} bytes with its headers, and "
            f"{self._limit_of(self.dead_letter)}: raise it (kafka-configs.sh --alter --topic {self.dead_letter} "
            "--add-config max.message.bytes=...), and start the job again. Nothing is lost"
        )

    def is_tried(self, record: Record) -> bool:
        """Say whether the broker may refuse the record, although `fitted` returned it."""
        return self.compresses and record_bytes(record) > self.limits[record[1]]

    def _takes(self, record: Record) -> bool:
        if record_bytes(record) <= self.limits[record[1]]:
            return True
        return self.compresses and (record[1], record_id(record)) not in self.refused

    def _limit_of(self, topic: str) -> str:
        return f"max.message.bytes of {topic} is {self.limits[topic]}"


def compresses(options: Mapping[str, str]) -> bool:
    """Say whether a producer with these options of librdkafka compresses."""
    return any(options.get(name, "none") != "none" for name in ("compression.type", "compression.codec"))


def largest_batch(options: Mapping[str, str], limits: Mapping[str, int]) -> int:
    """Return how many bytes a producer with these options of librdkafka may batch, so that every topic takes them."""
    return min(int(options.get("batch.size", _BATCH_BYTES)), smallest(limits))


def smallest(limits: Mapping[str, int]) -> int:
    """Return the smallest of the limits, in bytes."""
    return min(limits.values(), default=NO_LIMIT)
