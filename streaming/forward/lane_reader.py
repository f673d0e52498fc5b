"""Reading the input partitions of a lane, from its claim on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from conf.kafka.client_log import client_log
from conf.kafka.read_up_to import raise_unless_transient
from conf.settings import Settings
from state.claims import NO_EPOCH
from streaming.forward.lane import Lane, Place

log = logging.getLogger(__name__)

# The most that is accepted at once. A single call of the client may exceed it.
MOST_RECORDS = 4_000
MOST_BYTES = 32 * 1024 * 1024
_AT_ONCE = 1_000
_END_TIMEOUT_S = 10.0
# Errors of reading that pass: the next look at the inputs finds out whether the topic is there.
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class LaneReader:
    """A consumer of the input partitions of one lane. Its methods raise KafkaException."""

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        """`options` are librdkafka's."""
        self._consumer = Consumer(
            {
                **options,
                "logger": client_log(log),
                "group.id": f"{settings.claims_topic}-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                # Where records were deleted unread, or the log was cut, `_resume` finds out which.
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                # With a rack, a follower may answer, which has new records later.
                "client.rack": "",
                "fetch.min.bytes": 1,
                # Records come at once. That a partition ends behind the marker of a transaction comes with the next
                # answer, which claims wait for.
                "fetch.wait.max.ms": 200,
                "fetch.error.backoff.ms": 20,
                "queued.max.messages.kbytes": 16 * 1024,
                "fetch.queue.backoff.ms": 5,
                "fetch.message.max.bytes": 1024 * 1024,
                # The client's most: it must be above fetch.max.bytes, and above message.max.bytes, of [kafka].
                "receive.message.max.bytes": 2**31 - 1,
                "log_level": 2,
            }
        )

    def begin(self, lane: Lane) -> None:
        """Read from the positions of `lane` on."""
        self._consumer.assign(
            [
                # A new client checks with the epoch that the log has not been cut since.
                TopicPartition(*place, position, leader_epoch=lane.leader_epochs[place])
                for place, position in lane.positions.items()
            ]
        )

    def first(self, place: Place) -> int:
        """Return the offset of the first record of a partition."""
        offset: int = self._consumer.get_watermark_offsets(TopicPartition(*place), _END_TIMEOUT_S)[0]
        return offset

    def end(self, place: Place) -> int:
        """Return where a partition ends for readers of committed records: before the first open transaction."""
        offset: int = self._consumer.get_watermark_offsets(TopicPartition(*place), _END_TIMEOUT_S)[1]
        return offset

    def known_end(self, place: Place) -> int:
        """Return where a partition ended by the last answer of its broker, records of open transactions included."""
        offset: int = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)[1]
        return offset

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read(self, timeout_s: float) -> tuple[list[Message], dict[Place, tuple[int, int]], set[Place]]:
        """Return the records that have come, how far partitions are read with them, and where the client cannot go on.

        How far is an offset, and the leader epoch of the record just before it. Waits for the first record up to
        `timeout_s`. Raises KafkaException, RightMissing.
        """
        records: list[Message] = []
        reached: dict[Place, tuple[int, int]] = {}
        stuck: set[Place] = set()
        for message in self._consumed(timeout_s):
            error = message.error()
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if error is None:
                records.append(message)
                leader_epoch = message.leader_epoch()
                reached[place] = offset + 1, NO_EPOCH if leader_epoch is None else leader_epoch
            elif error.code() == KafkaError._PARTITION_EOF:
                # The last record may be followed by offsets without records, such as the ends of transactions.
                if offset > reached.get(place, (-1, NO_EPOCH))[0]:
                    reached[place] = offset, NO_EPOCH
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                stuck.add(place)
            elif error.code() not in _NO_TOPIC:
                raise_unless_transient(message, error)
        return records, reached, stuck

    def _consumed(self, timeout_s: float) -> Iterator[Message]:
        """Yield what has come, up to a limit. Wait for the first one up to `timeout_s`, and not for more."""
        first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first]
        count = nbytes = 0
        while messages:
            yield from messages
            count += len(messages)
            nbytes += sum(map(len, messages))
            enough = count >= MOST_RECORDS or nbytes >= MOST_BYTES
            messages = [] if enough else self._consumer.consume(_AT_ONCE, 0)
