"""Reads a shard's partition of the ready log: first up to its end, then what comes.

Two consumers: one waits at the broker for what comes; the other reads what is there and does not wait for more, so that
it finds the end of the log at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable, ReadyLogLost
from conf.kafka.client_log import client_log
from conf.kafka.headers import read_headers
from conf.settings import Settings
from sinks.internal_topics.newest_record import bounds
from sinks.internal_topics.position import Position
from sinks.ready_log.chunk import ChunkSummary, summary_of
from sinks.topics.topic_ids import topic_id

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 100
_TIMEOUT_S = 30.0
# What a reader may have fetched ahead. A larger record is fetched alone.
_PREFETCH_KBYTES = 4096
# A larger gap is not read through, but sought across.
_GAP = 50
_REMEDY = (
    "What was handed over and not released is lost there, unless you restore the topic. `delayline repair --ready-log` "
    "goes on without it, and names what is missing"
)


class LogReader:
    """Reads `shard` from `position` on, or from the beginning without one. A context manager.

    `position` is the one to go on from. `at_end` is set once everything that was there has been read. `end` is where
    the log ended when the reader came to its end last: all below it is read.
    """

    def __init__(self, settings: Settings, options: Mapping[str, str], shard: int, position: Position | None) -> None:
        """Open a consumer. Raises ReadyLogLost, TopicMissing, KafkaException, BrokerUnreachable."""
        self._topic, self._shard = settings.ready_topic, shard
        found = topic_id(options, self._topic)
        self.position = position or Position(found)
        self.at_end = False
        self.end = 0
        self._options = {
            **options,
            "group.id": f"{self._topic}-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.min.bytes": 1,
            "fetch.error.backoff.ms": 20,
            "queued.max.messages.kbytes": _PREFETCH_KBYTES,
            # How long the client pauses when it has that much: a second by default.
            "fetch.queue.backoff.ms": 5,
            "fetch.message.max.bytes": 1024 * 1024,
            # The client's most: it must be above fetch.max.bytes, and above message.max.bytes, of [kafka].
            "receive.message.max.bytes": 2**31 - 1,
            "log_level": 2,
        }
        self._coming = Consumer(self._options | {"fetch.wait.max.ms": 500}, logger=client_log(log))
        self._there = Consumer(self._options | {"fetch.wait.max.ms": 10}, logger=client_log(log))
        try:
            self._check(found)
            self._there.assign([TopicPartition(self._topic, shard, self.position.lowest)])
        except BaseException:
            self.close()
            raise

    def read(self, timeout_s: float) -> Iterator[tuple[int, ChunkSummary, bytes]]:
        """Yield offset, summary and payload of the chunks that have come; wait for the first one up to `timeout_s`.

        Raises ReadyLogLost; KafkaException after all that has come, so that the caller may go on later.
        """
        consumer = self._coming if self.at_end else self._there
        first = consumer.poll(timeout_s)
        if first is None:
            return
        failure: KafkaException | None = None
        for message in (first, *consumer.consume(_MOST_AT_ONCE, 0)):
            if _is_eof(message):
                self.end = message.offset() or 0
                if not self.at_end:
                    self._follow()
                    # What may follow here is read by the other consumer.
                    break
                continue
            try:
                if not self._is_record(message):
                    continue
            except KafkaException as problem:
                failure = failure or problem
                continue
            offset = message.offset()
            assert offset is not None
            yield offset, summary_of(read_headers(message), self._place(offset)), message.value() or b""
        if failure is not None:
            raise failure

    def read_again(self, offsets: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the payloads of the chunks at `offsets`, ascending. Raises ReadyLogLost, KafkaException."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        wanted = list(offsets)
        at: int | None = None
        while wanted:
            if at is None or wanted[0] - at > _GAP:
                self._there.assign([TopicPartition(self._topic, self._shard, wanted[0])])
            message = self._there.poll(1.0)
            if message is None and time.monotonic() < deadline_s:
                continue
            if message is None or _is_eof(message):
                raise BrokerUnreachable(f"{self._place(wanted[0])} cannot be read again")
            if not self._is_record(message):
                continue
            at = message.offset()
            assert at is not None
            if at > wanted[0]:
                raise ReadyLogLost(f"{self._place(wanted[0])} is gone. {_REMEDY}")
            if at == wanted[0]:
                wanted.pop(0)
                yield at, message.value() or b""
        self._there.unassign()

    def close(self) -> None:
        """Close the consumers."""
        self._coming.close()
        self._there.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _follow(self) -> None:
        """Go on at the end of the log with what comes."""
        self._there.unassign()
        self._coming.assign([TopicPartition(self._topic, self._shard, self.end)])
        self.at_end = True

    def _is_record(self, message: Message) -> bool:
        """Return False for an error that passes. Raises ReadyLogLost, KafkaException for any other error."""
        error = message.error()
        if error is None:
            return True
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise ReadyLogLost(f"{self._topic}/{self._shard}: {error.str()}. {_REMEDY}")
        # The login needs no right to the group, which is neither joined nor written to.
        if not error.retriable() and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error)
        return False

    def _check(self, found: str) -> None:
        """Raise ReadyLogLost if the log is another one than that of the position, or lacks records."""
        position = self.position
        place = f"{self._topic}/{self._shard}"
        # First: another topic may lack the partition, which is no more than a part of what is wrong with it.
        if position.topic_id != found:
            raise ReadyLogLost(f"{place} is another topic ({found}) than the one that was released. {_REMEDY}")
        low, high = bounds(self._there, TopicPartition(self._topic, self._shard), time.monotonic() + _TIMEOUT_S)
        if low > position.lowest:
            raise ReadyLogLost(f"{place} begins at offset {low}, and is released up to {position.lowest}. {_REMEDY}")
        if high < position.taken_in:
            raise ReadyLogLost(f"{place} ends at offset {high}, and was read up to {position.taken_in}. {_REMEDY}")

    def _place(self, offset: int) -> str:
        return f"{self._topic}/{self._shard} at offset {offset}"


def _is_eof(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF
