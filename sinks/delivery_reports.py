"""What the brokers say of the records of a transaction that they did not take."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from conf.errors import TopicMismatch, TopicMissing
from sinks.records import Record, record_id
from sinks.size_check import Refusal

_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_NO_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
# Of records that were given up because of another one.
_CONSEQUENCES = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}


class Refused(Exception):
    """The broker took a batch of records for too large, and nothing of the transaction will be visible."""

    def __init__(self, refusals: Set[Refusal], sentence: str) -> None:
        """`refusals` are those records that were over a limit as far as it was known."""
        super().__init__(sentence)
        self.refusals = refusals


class DeliveryReports:
    """Of one producer. It does not know the producer, which knows it: a circle would keep that one connected."""

    def __init__(self) -> None:
        self._failure: Callable[[], Exception] | None = None
        self._refusals: set[Refusal] = set()

    def check(self) -> None:
        """Raise what the first record failed by, if one did: see `error`."""
        if self._failure is not None:
            raise self._failure()

    def failed(self, error: KafkaError, message: Any) -> None:
        """Take a record's failure, as the producer's `on_delivery`."""
        if self._failure is None and error.code() not in _CONSEQUENCES:
            self._failure = partial(self.error, error, message.topic(), message.partition())

    def of_tried(self, record: Record) -> Callable[[KafkaError | None, Any], None]:
        """Return an `on_delivery` for `record` alone, which is over its topic's limit as far as is known."""

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                if error.code() in _TOO_LARGE:
                    self._refusals.add((record[1], record_id(record)))
                self.failed(error, message)

        return report

    def error(self, error: KafkaError, topic: str, partition: int) -> Exception:
        """Return the exception for a record's failure.

        It is Refused, TopicMissing, TopicMismatch if there is no such partition, or a KafkaException.
        """
        if error.code() in _TOO_LARGE:
            return Refused(self._refusals, f"{topic}/{partition}: {error.str()}")
        if error.code() in _NO_TOPIC:
            return topic_gone(topic)
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            return TopicMismatch(
                f"messages wait for partition {partition} of {topic}, which has fewer: it was created anew while the "
                f"job ran. Give it at least {partition + 1} partitions, and start the job again. Nothing is lost"
            )
        return KafkaException(error)


def topic_gone(topic: str) -> TopicMissing:
    """Return the error for a topic that was there when the job started."""
    return TopicMissing(
        f"{topic}, which messages are to be written to, is gone: create it again with as many partitions as it had, "
        "and start the job again. What waits is not lost"
    )
