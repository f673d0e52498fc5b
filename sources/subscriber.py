"""Reading a topic as a subscriber does: committed records only, each with its lateness.

Uses confluent-kafka: kafka-python reads committed records correctly too, but without further packages it stops with an
error at the first batch that is compressed with lz4, snappy or zstd.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable, RightMissing, SettingError, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.contact import check_contact
from conf.kafka.error_codes import is_transient_read
from conf.kafka.headers import read_headers
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from state.message import DELIVER_AT_HEADER, ID_HEADER

CONNECT_TIMEOUT_S = 10.0
_POLL_S = 0.1
_POLL_MESSAGES = 500
# More digits than any due time has. A dead letter keeps its publisher's headers, and a longer number is not an instant.
_MOST_DIGITS = 18
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Received:
    """One record, with the time at which it was received (epoch ms).

    `has_readable_headers` is False if the name of a header is not UTF-8; then `headers` is empty.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    received_ms: int
    has_readable_headers: bool = True

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header with this name, or None without such a header."""
        # The last one: the service adds its headers after the publisher's.
        return next((value for given, value in reversed(self.headers) if given == name), None)

    @property
    def id(self) -> str | None:
        """The message id, `topic/partition/offset` of the input; None if Delayline did not write it."""
        value = self.header(ID_HEADER)
        return None if value is None else value.decode(errors="replace")

    @property
    def deliver_at_ms(self) -> int | None:
        """The due time, epoch ms; None if Delayline did not deliver the record."""
        value = self.header(DELIVER_AT_HEADER)
        if value is None or not value.isdigit() or len(value) > _MOST_DIGITS:
            return None
        return int(value)

    @property
    def lateness_ms(self) -> int | None:
        """The time from the due time until the record was received; None if it has no due time."""
        return None if self.deliver_at_ms is None else self.received_ms - self.deliver_at_ms


class Subscriber:
    """A consumer of all partitions of a topic, in no group. It does not read partitions that are added later.

    Its creation fixes the start offsets, so that no record published afterwards is missed.
    """

    def __init__(self, settings: Settings, topic: str, from_beginning: bool = False) -> None:
        """Connect, and fix the start offsets: the end of each partition, or its beginning.

        Raises BrokerUnreachable, TopicMissing, RightMissing, SettingError, and what `check_contact` raises.
        """
        check_contact(settings.kafka)
        self.topic = topic
        self._servers = settings.kafka.bootstrap_servers
        options = {
            "log_level": "3",
            "fetch.wait.max.ms": "50",
            **librdkafka_options(settings.kafka),
            # The client requires a group id; no group is joined, and nothing is committed to it.
            "group.id": f"{settings.application_id}-subscribe-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
            # Applies when retention deletes records before they are read.
            "auto.offset.reset": "earliest",
        }
        try:
            self._consumer = Consumer(options, logger=client_log(log))
        except KafkaException as error:
            raise SettingError(f"[kafka]: {error.args[0].str()}") from error
        try:
            self.start_offsets = self._start_offsets(from_beginning)
            self._consumer.assign(
                [TopicPartition(topic, number, offset) for number, offset in self.start_offsets.items()]
            )
        except BaseException:
            self.close()
            raise

    def records(self, count: int | None = None, timeout_ms: int | None = None) -> Iterator[Received]:
        """Yield records as they come, up to `count` and for up to `timeout_ms`. None means no limit.

        Raises BrokerUnreachable for an error from which the client does not recover by itself.
        """
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        seen = 0
        while (count is None or seen < count) and (deadline_s is None or time.monotonic() < deadline_s):
            wanted = _POLL_MESSAGES if count is None else min(_POLL_MESSAGES, count - seen)
            # Poll for one message first: `consume` alone would wait for all of `wanted`, and delay the first.
            first = self._consumer.poll(_POLL_S)
            messages = [] if first is None else [first, *self._consumer.consume(wanted - 1, 0)]
            received_ms = int(time.time() * 1000)
            for message in messages:
                if error := message.error():
                    self._check(error)
                    continue
                seen += 1
                yield received(message, received_ms)

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of any topic's partitions, in order. Brokers do not create a missing topic for this.

        Raises BrokerUnreachable, TopicMissing, RightMissing.
        """
        try:
            described = self._consumer.list_topics(topic, CONNECT_TIMEOUT_S).topics[topic]
            if described.error is not None and described.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicMissing(
                    f"{topic} at {self._servers}: unknown topic. Create it with `delayline topics create`, "
                    "or name another topic"
                )
            if described.error is not None:
                raise KafkaException(described.error)
        except KafkaException as error:
            raise self._unreachable(error.args[0], topic) from error
        return sorted(described.partitions)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_offsets(self, from_beginning: bool) -> dict[int, int]:
        numbers = self.partitions(self.topic)
        try:
            offsets = {}
            for number in numbers:
                # For a reader of committed records, the end is before a transaction that is still open.
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(self.topic, number), CONNECT_TIMEOUT_S, cached=False
                )
                offsets[number] = low if from_beginning else high
            return offsets
        except KafkaException as error:
            raise self._unreachable(error.args[0], self.topic) from error

    def _check(self, error: KafkaError) -> None:
        # The client recovers from a lost connection by itself.
        lost = error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
        if lost or is_transient_read(error):
            log.warning("%s", error.str())
            return
        raise self._unreachable(error, self.topic)

    def _unreachable(self, error: KafkaError, topic: str) -> BrokerUnreachable | RightMissing:
        if is_refusal(error):
            return right_missing("Read" if topic == self.topic else "Describe", f"topic {topic}")
        return BrokerUnreachable(
            f"cannot read {topic} at {self._servers} ({error.str()}). Check that the broker runs, "
            "kafka.bootstrap_servers and kafka.security.protocol"
        )


def received(message: Message, received_ms: int) -> Received:
    """Return confluent-kafka's `message`, which must not be an error, as received at `received_ms`, epoch ms."""
    headers = read_headers(message)
    return Received(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=headers or [],
        received_ms=received_ms,
        has_readable_headers=headers is not None,
    )
