"""The pace of batches: the next one begins when records have arrived, and otherwise every few seconds.

An idle batch costs as much as a busy one. It stages messages a horizon ahead, so the next batch can wait. It can wait
longer if there are no waiting messages. Urgent work does not wait for `clock.trigger`: it begins a batch half a second
after the last one began.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.topics.partitions import partition_counts
from state.checkpoint.origin import Offsets
from state.checkpoint.progress import BatchSpan

log = logging.getLogger(__name__)

_POLL_S = 0.1
_IDLE_MS, _EMPTY_MS = 5_000, 15_000
# From the start of one batch to the start of the next, if something is urgent.
_URGENT_MS = 500
# A batch stages messages for several times the interval between batches.
_BATCHES_IN_A_HORIZON = 4


# Waits up to so many seconds for urgent work, and returns whether there is any. It may return False sooner, but not
# again and again at once. An exception fails the batch.
LookForUrgent = Callable[[float], bool]


def reads_to_limit(span: BatchSpan, most_records: int) -> bool:
    """Return whether the batch of `span` reads all records that it may, so that more may wait.

    Spark divides `most_records` among the partitions, and rounds each share down, but takes one record at least.
    """
    partitions = sum(map(len, span.ends.values()))
    return sum(span.read_by_topic.values()) > max(0, most_records - max(1, partitions))


class ArrivalWatch:
    """Waits for records after the ones that a batch has read. Only the query's thread may use it, except for `wake`."""

    def __init__(self, settings: Settings, urgent_ms: int = _URGENT_MS, idle_ms: int = _IDLE_MS) -> None:
        self._urgent_s = min(settings.clock.trigger, urgent_ms) / 1000
        most_ms = settings.clock.horizon // _BATCHES_IN_A_HORIZON
        self._forwarded_ms = min(settings.forward.trigger, most_ms)
        longest_ms = max(settings.clock.trigger, self._forwarded_ms if settings.forward.is_on else 0)
        # How long a batch may be put off, in s; and if no message waits.
        self.idle_s, self.empty_s = (max(longest_ms, min(each, most_ms)) / 1000 for each in (idle_ms, _EMPTY_MS))
        self._settings = settings
        self._woken = threading.Event()
        self._consumer = Consumer(
            {
                **librdkafka_options(settings.kafka),
                "logger": client_log(log),
                "group.id": f"{settings.application_id}-arrivals",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                # The records are not kept. One is enough.
                "queued.min.messages": 1,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 1,
                "fetch.message.max.bytes": 1,
                "fetch.wait.max.ms": 1_000,
                "fetch.error.backoff.ms": 100,
                "log_level": 2,
            }
        )

    def wait(
        self,
        begun_s: float,
        read: Offsets,
        is_urgent: bool = False,
        is_forwarded: bool = False,
        look_for_urgent: LookForUrgent | None = None,
        is_empty: bool = False,
    ) -> None:
        """Return when the next batch should begin.

        - after a short delay, or `clock.trigger` if that is shorter, if the next batch `is_urgent`, or
          `look_for_urgent` finds that it is
        - `clock.trigger` after the last one began, or `forward.trigger` if all records pass forwarders
          (`is_forwarded`), or as soon after that as there is a record at or above the offsets `read`
        - after a few seconds in any case, some more if no message waits (`is_empty`), or when `wake` is called

        `begun_s` is when the last batch began (monotonic). `look_for_urgent` is called in this thread, only before the
        trigger has passed: after it, any record ends the wait.
        """
        trigger_ms = self._forwarded_ms if is_forwarded else self._settings.clock.trigger
        self._wait_until(begun_s + self._urgent_s)
        if is_urgent or self._is_urgent_before(begun_s + trigger_ms / 1000, look_for_urgent):
            return
        deadline_s = begun_s + (self.empty_s if is_empty else self.idle_s)
        if time.monotonic() >= deadline_s or self._woken.is_set():
            return
        self._consumer.assign(self._positions(read))
        while time.monotonic() < deadline_s and not self._woken.is_set():
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            # Leave other errors, such as deleted records, to the batch, which reports them.
            if error is None or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                break
        self._consumer.unassign()

    def _is_urgent_before(self, end_s: float, look: LookForUrgent | None) -> bool:
        """Wait until `end_s` (monotonic), or a wake, or until `look` finds something urgent. Return whether it has."""
        if look is None:
            self._wait_until(end_s)
            return False
        while not self._woken.is_set() and (left_s := end_s - time.monotonic()) > 0:
            if look(min(_POLL_S, left_s)):
                return True
        return False

    def _wait_until(self, at_s: float) -> None:
        self._woken.wait(max(0.0, at_s - time.monotonic()))

    def wake(self) -> None:
        """Let `wait` return at once, now and from now on."""
        self._woken.set()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _positions(self, read: Offsets) -> list[TopicPartition]:
        counts = {} if read else self._counts()
        return [
            TopicPartition(topic, int(partition), max(0, offset))
            for topic, by_partition in read.items()
            for partition, offset in by_partition.items()
        ] + [
            # Spark plans no offsets before the first record.
            TopicPartition(topic, number, OFFSET_BEGINNING)
            for topic, count in counts.items()
            for number in range(count)
        ]

    def _counts(self) -> dict[str, int]:
        try:
            return partition_counts(self._settings, self._settings.topics.input)
        except BrokerUnreachable:
            # An outage fails no batch: Spark waits for its end before the next one.
            return {}
