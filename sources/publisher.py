"""Publishing messages for people and scripts. All in-sync replicas confirm each message, and its id is returned."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    AuthorizationError,
    ClusterAuthorizationFailedError,
    KafkaConfigurationError,
    KafkaError,
    for_code,
)
from kafka.partitioner.default import murmur2

from conf.errors import BrokerUnreachable, PublishFailed, SettingError, TopicMissing, UsageError
from conf.kafka.contact import check_contact
from conf.kafka.options import kafka_python_options
from conf.kafka.rights import right_missing
from conf.settings import Settings

CONNECT_TIMEOUT_MS = 10_000
DELIVERY_TIMEOUT_MS = 60_000
MAX_IN_FLIGHT_MESSAGES = 5_000
MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
_PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable_idempotence": True,
    "allow_auto_create_topics": False,
    "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
    "linger_ms": 5,
    "batch_size": 256 * 1024,
    # The topic limits a record's size; the client must not have a lower limit.
    "max_request_size": 100_000_000,
}

Headers = Sequence[tuple[str, bytes]]


class Publisher:
    """An idempotent producer for one topic, or one partition of it. Close it, or use it as a context manager."""

    def __init__(
        self, settings: Settings, topic: str, partition: int | None = None, partition_key: bytes | None = None
    ) -> None:
        """Connect, and check that the topic and partition exist.

        Without a `partition`, messages go to the partition that the `partition_key` chooses. Without a `partition_key`,
        their own keys choose the partitions.

        Raises BrokerUnreachable, TopicMissing, RightMissing, UsageError (no such partition), SettingError, and what
        `check_contact` raises.
        """
        self.topic = topic
        self._partition, self._partition_key = partition, partition_key
        self._servers = settings.kafka.bootstrap_servers
        common = {
            "client_id": f"{settings.application_id}-publish",
            **kafka_python_options(settings.kafka),
            "bootstrap_timeout_ms": CONNECT_TIMEOUT_MS,
        }
        check_contact(settings.kafka)
        try:
            self._check_topic(common)
            self._producer = KafkaProducer(**_PRODUCER | common | {"max_block_ms": CONNECT_TIMEOUT_MS})
        except KafkaConfigurationError as error:
            raise SettingError(f"[kafka]: {error}") from error
        except (KafkaError, OSError) as error:
            raise BrokerUnreachable(
                f"no broker answers at {self._servers} ({error}). Check that it runs, "
                "kafka.bootstrap_servers and kafka.security.protocol"
            ) from error

    def publish(self, values: Iterable[bytes | None], key: bytes | None = None, headers: Headers = ()) -> Iterator[str]:
        """Send each value, and yield the message ids in the same order, each as soon as it is confirmed.

        Up to `MAX_IN_FLIGHT_MESSAGES` and `MAX_IN_FLIGHT_BYTES` are sent and not yet confirmed. Raises PublishFailed
        at the first message that the broker refuses or does not confirm within `DELIVERY_TIMEOUT_MS`; some later ones
        may have been published.
        """
        in_flight = _InFlight()
        # A thread, so that ids are yielded while the next value is still awaited (a slow pipe).
        feeder = threading.Thread(target=self._feed, args=(in_flight, values, key, list(headers)), daemon=True)
        feeder.start()
        try:
            while (sent := in_flight.next()) is not None:
                yield self._confirmed(sent)
        finally:
            in_flight.cancel()

    def close(self) -> None:
        """Wait up to 5 s for messages in flight, and disconnect."""
        self._producer.close(timeout=5)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_topic(self, options: dict[str, Any]) -> None:
        # With an admin client: a producer would wait until its timeout for a missing topic to appear.
        with KafkaAdminClient(**options) as admin:
            (described,) = admin.describe_topics([self.topic])
        partitions = len(described["partitions"])
        if issubclass(for_code(described["error_code"]), AuthorizationError):
            raise right_missing("Write", f"topic {self.topic}")
        if described["error_code"] or not partitions:
            why = for_code(described["error_code"]).__name__
            raise TopicMissing(
                f"{self.topic} at {self._servers} ({why}). Create it with `delayline topics create`, or name "
                "another topic"
            )
        if self._partition is not None and self._partition >= partitions:
            raise UsageError(f"{self.topic} has no partition {self._partition}, only 0 to {partitions - 1}")
        if self._partition is None and self._partition_key is not None:
            self._partition = (murmur2(self._partition_key) & 0x7FFFFFFF) % partitions

    def _feed(
        self, in_flight: _InFlight, values: Iterable[bytes | None], key: bytes | None, headers: list[Any]
    ) -> None:
        try:
            for value in values:
                if not in_flight.acquire(len(value or b"")):
                    return
                sent = self._producer.send(self.topic, value=value, key=key, headers=headers, partition=self._partition)
                in_flight.put(sent, len(value or b""))
            in_flight.put(None)
        except BaseException as error:  # noqa: BLE001, the confirming thread raises it
            in_flight.put(error)

    def _confirmed(self, sent: Any) -> str:
        """Wait until a message is confirmed, and return its id."""
        try:
            if isinstance(sent, BaseException):
                raise sent
            record = sent.get(timeout=DELIVERY_TIMEOUT_MS / 1000)
        except KafkaError as error:
            # A login without any right to write may not be idempotent either. The client has only text for this error.
            if isinstance(error, AuthorizationError) or ClusterAuthorizationFailedError.__name__ in str(error):
                raise right_missing("Write", f"topic {self.topic}") from error
            raise PublishFailed(f"{self.topic} at {self._servers}: {type(error).__name__}: {error}") from error
        return f"{record.topic}/{record.partition}/{record.offset}"


class _InFlight:
    """The messages sent and not confirmed yet, in order: bounded in number and bytes."""

    def __init__(self) -> None:
        self._sent: queue.Queue[tuple[Any, int]] = queue.Queue()
        self._changed = threading.Condition()
        self._messages = 0
        self._bytes = 0
        self._cancelled = False

    def acquire(self, size: int) -> bool:
        """Wait until another message of `size` bytes may be sent. Returns False if sending was cancelled."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._cancelled
                    # A message alone may have any size, or it could never be sent.
                    or self._messages == 0
                    or (self._messages < MAX_IN_FLIGHT_MESSAGES and self._bytes + size <= MAX_IN_FLIGHT_BYTES)
                )
            )
            self._messages += 1
            self._bytes += size
            return not self._cancelled

    def put(self, sent: Any, size: int = 0) -> None:
        """Add a message's future, or None after the last one, or the error that ended the feeding."""
        self._sent.put((sent, size))

    def next(self) -> Any:
        """Return the oldest future, waiting for one, and admit another message."""
        sent, size = self._sent.get()
        with self._changed:
            self._messages -= 1
            self._bytes -= size
            self._changed.notify()
        return sent

    def cancel(self) -> None:
        """End the feeding."""
        with self._changed:
            self._cancelled = True
            self._changed.notify()
