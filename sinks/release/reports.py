"""Delivery reports of a transaction's records: which the brokers refused, and which offsets the others have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException

from conf.errors import DelaylineError, TopicMismatch, TopicMissing
from conf.kafka.error_codes import is_of_client, is_outage
from conf.kafka.rights import write_barred
from conf.rejected import MessageTooLarge, RecordRefused, Rejected
from sinks.release.record_check import Refusals
from sinks.release.records import Record, record_bytes, record_id

_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
# The fault of one record, for which its whole batch is refused. The broker names the record, but the client does not
# always pass that on: if it is a single one, all records of the batch get the error (librdkafka 2.16).
_INVALID = {KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP}
_NO_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
# Errors of records that failed because of another record; with the last one, of a record in the same batch.
_CONSEQUENCES = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD}
# Errors of the transaction or the producer, whichever record reports them.
_OF_NO_RECORD = {KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED}
# Kafka's codes for the producer, its transaction or its login. Any other code of a broker concerns the record's topic.
_OF_PRODUCER = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.DUPLICATE_SEQUENCE_NUMBER,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.PRODUCER_FENCED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.SECURITY_DISABLED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTION_ABORTABLE,
    KafkaError.TRANSACTION_COORDINATOR_FENCED,
    KafkaError.UNSUPPORTED_VERSION,
}
# The first and the last offset of a transaction's records, by topic and partition.
Offsets = Mapping[tuple[str, int], tuple[int, int]]


def is_of_record(error: KafkaError) -> bool:
    """Return whether a broker refuses a batch of records for one of them: another one may be accepted."""
    return error.code() in _TOO_LARGE | _INVALID


class Refused(Exception):
    """`topic` refused a record that was expected to be accepted, and nothing of the transaction will be visible."""

    def __init__(
        self, topic: str, error: Rejected, refusals: Refusals | None = None, named: Collection[bytes] = ()
    ) -> None:
        """`error` is the error of the record to blame. `refusals` are the records known to be too large.

        `named` has the ids of the messages that `topic` refuses with `error`, if they are known.
        """
        super().__init__(str(error))
        self.topic = topic
        self.error = error
        self.refusals = refusals or {}
        self.named = named


class Unwritable(Exception):
    """A client has heard that `topic` is gone, barred, or lacks a partition. `error` tells an operator."""

    def __init__(self, topic: str, error: DelaylineError) -> None:
        super().__init__(str(error))
        self.topic = topic
        self.error = error


class DeliveryReports:
    """The reports of one producer. Holds no reference to its producer: a cycle would delay its disconnect."""

    def __init__(self) -> None:
        self._failure: Callable[[], Exception] | None = None
        # By topic and partition, for the records with a report of their own: records that were found too large; records
        # of batches with an invalid record; and the partitions for which the client tells these apart.
        self._too_large: dict[tuple[str, int], list[Record]] = {}
        self._invalid: dict[tuple[str, int], list[Record]] = {}
        self._told_apart: set[tuple[str, int]] = set()
        # None where an offset is not known.
        self._offsets: dict[tuple[str, int], tuple[int, int] | None] = {}

    def begin(self) -> None:
        """Begin a transaction: forget the offsets of the one before."""
        self._offsets = {}

    @property
    def offsets(self) -> Offsets:
        """The offsets of the transaction's records, as far as they are reported."""
        return {place: offsets for place, offsets in self._offsets.items() if offsets is not None}

    def check(self) -> None:
        """Raise the error of the first record that failed, if one did: see `error`."""
        if self._failure is not None:
            raise self._failure()

    def reported(self, error: KafkaError | None, message: Any) -> None:
        """Store a record's offset, or its failure; for the producer's `on_delivery`."""
        if error is None:
            self._note((message.topic(), message.partition()), message.offset())
        elif self._failure is None and error.code() not in _CONSEQUENCES:
            self._failure = partial(self.error, error, message.topic(), message.partition())

    def _note(self, place: tuple[str, int], offset: int | None) -> None:
        known = self._offsets.setdefault(place, None if offset is None else (offset, offset))
        # If a record was sent twice, the broker does not report the offset of the first one.
        if known is not None:
            self._offsets[place] = None if offset is None else (min(known[0], offset), max(known[1], offset))

    def of_tried(self, record: Record) -> Callable[[KafkaError | None, Any], None]:
        """Return an `on_delivery` for `record` alone, which its topic may refuse."""

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                place = record.topic, message.partition()
                if error.code() in _TOO_LARGE:
                    self._too_large.setdefault(place, []).append(record)
                elif error.code() in _INVALID:
                    self._invalid.setdefault(place, []).append(record)
                elif error.code() == KafkaError._INVALID_DIFFERENT_RECORD:
                    self._told_apart.add(place)
            self.reported(error, message)

        return report

    def error(self, error: KafkaError, topic: str, partition: int) -> Exception:
        """Return the exception for a record's failure.

        It is Refused for a refused record. It is Unwritable with TopicMissing, RightMissing, or TopicMismatch (for a
        missing partition). Otherwise it is a KafkaException that names the partition, unless the error concerns the
        whole transaction.
        """
        refusal = f"{topic}/{partition} refuses the record: {error.str()}"
        if error.code() in _TOO_LARGE:
            advice = "Grant the job DescribeConfigs on the topic, and check max.message.bytes and segment.bytes"
            # One that was alone in its batch.
            alone = [each[0] for (name, _), each in self._too_large.items() if name == topic and len(each) == 1]
            refusals = {(topic, record_id(record)): _too_large(record, error) for record in alone}
            return Refused(topic, MessageTooLarge(f"{refusal}. {advice}"), refusals)
        if error.code() in _INVALID:
            advice = (
                "Check whether the topic requires a key (cleanup.policy=compact), and which timestamps it "
                "accepts (message.timestamp.before.max.ms, message.timestamp.after.max.ms) by the broker's "
                "clock"
            )
            place = topic, partition
            named = [record_id(record) for record in self._invalid.get(place, ())] if place in self._told_apart else []
            cause: Literal["record", "timestamp"] = (
                "timestamp" if error.code() == KafkaError.INVALID_TIMESTAMP else "record"
            )
            return Refused(topic, RecordRefused(f"{refusal}. {advice}", cause), named=named)
        if error.code() in _NO_TOPIC:
            return Unwritable(topic, topic_gone(topic))
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return Unwritable(topic, write_barred(f"{topic}/{partition}"))
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            mismatch = TopicMismatch(
                f"messages wait for partition {partition} of {topic}, but the topic was created again with "
                f"fewer partitions while the job ran. Add partitions until it has {partition + 1}, and start "
                "the job again. Nothing is lost"
            )
            return Unwritable(topic, mismatch)
        if error.code() in _OF_NO_RECORD:
            return KafkaException(error)
        if error.code() in _OF_PRODUCER or is_of_client(error) or is_outage(error):
            return KafkaException(KafkaError(error.code(), f"{topic}/{partition}: {error.str()}"))
        advice = f"The error is {error.name()}. The broker's log may say more"
        return Refused(topic, RecordRefused(f"{refusal}. {advice}", "other"))


def _too_large(record: Record, error: KafkaError) -> MessageTooLarge:
    return MessageTooLarge(
        f"{record.topic} refuses the record, which has {record_bytes(record)} bytes uncompressed: {error.str()}"
    )


def topic_gone(topic: str) -> TopicMissing:
    """Return the error for a topic that was there when the job started."""
    return TopicMissing(
        f"topic {topic}, to which the job writes, is gone. Create it again with the same number of "
        "partitions, and start the job again. Waiting messages are not lost"
    )
