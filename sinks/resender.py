"""Sending dead letters to their input topics again, in transactions that also store how far they are resent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from conf.errors import PublishFailed
from conf.kafka.clients import NO_SIZE_LIMIT, make_client
from conf.kafka.options import librdkafka_options
from conf.kafka.repeated_commit import repeat_backoff, sent_once
from conf.settings import Settings
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.release.record_check import batch_bytes
from sinks.release.records import ANY_PARTITION
from sinks.release.reports import is_of_record
from sinks.topics.limits import TopicLimits

_RETRY_S = 0.2


@dataclass(frozen=True)
class Outgoing:
    """A record for an input topic. `partition` None leaves it to Kafka's partitioner. `timestamp_ms` is epoch ms."""

    topic: str
    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class TransactionRefused(Exception):
    """A broker refuses one of a transaction's records, and nothing of the transaction is visible."""


class Resender:
    """A transactional producer. A new one of the same application fences the previous one.

    `is_spent` says that the last commit may have been sent twice (`conf.kafka.repeated_commit`), or that the last
    transaction was refused. Then call `renew`, and read the positions again, before the next `send`.
    """

    def __init__(self, settings: Settings, limits: Mapping[str, TopicLimits]) -> None:
        """Connect, and fence the previous producer. Raises PublishFailed if the broker refuses.

        `limits` has the limits of each input topic.
        """
        self._timeout_s = settings.release.transaction_timeout / 1000
        self._topic = settings.topics.dead_letter
        self._servers = settings.kafka.bootstrap_servers
        options = librdkafka_options(settings.kafka)
        self._options = {
            "log_level": "3",
            **options,
            **NO_SIZE_LIMIT,
            **repeat_backoff(options),
            # Then only a record alone in its batch can be too large for its topic.
            "batch.size": str(min([batch_bytes(options), *(each.max_bytes for each in limits.values())])),
            # The partitioner of Java's client; librdkafka's default differs.
            "partitioner": "murmur2_random",
            "transactional.id": transactional_id(settings.application_id, "resend"),
            "transaction.timeout.ms": str(settings.release.transaction_timeout),
        }
        self.renew()

    def renew(self) -> None:
        """Open a new producer, which fences the one before. Raises PublishFailed if the broker refuses."""
        self.is_spent = False
        self._producer = make_client(Producer, self._options)
        try:
            self._retry(lambda: self._producer.init_transactions(self._timeout_s))
        except KafkaException as problem:
            raise self._failed(problem.args[0]) from problem

    def send(self, records: Sequence[Outgoing], positions: Mapping[int, tuple[int, str]], group: Any) -> list[str]:
        """Send `records`, and commit `positions` of the dead-letter topic's partitions for `group`: all or nothing.

        A position is an offset and the text that Kafka stores with it. Returns the ids of the records, in their order.
        Raises TransactionRefused, and PublishFailed: then nothing is visible, or the broker did not answer the commit.
        """
        delivered: list[Message | None] = [None] * len(records)
        refused: list[KafkaError] = []
        committing = False
        try:
            self._producer.begin_transaction()
            for at, record in enumerate(records):
                self._produce(record, _report(delivered, at, refused))
            self._flush(refused)
            offsets = [TopicPartition(self._topic, number, *position) for number, position in positions.items()]
            self._retry(lambda: self._producer.send_offsets_to_transaction(offsets, group, self._timeout_s))
            committing = True
            begun_s = time.monotonic()
            self._retry(lambda: self._producer.commit_transaction(self._timeout_s))
        except KafkaException as problem:
            error = problem.args[0]
            if committing and error.retriable():
                raise self._unanswered(error) from problem
            aborting, fault = self._abort(), next(filter(is_of_record, refused), None)
            if fault is not None:
                # The client may not be ready for the next transaction yet.
                self.is_spent = True
                raise TransactionRefused(fault.str()) from problem
            raise self._failed(refused[0] if refused else error, aborting) from problem
        self.is_spent = not sent_once(begun_s, self._options)
        return [f"{each.topic()}/{each.partition()}/{each.offset()}" for each in delivered if each is not None]

    def _produce(self, record: Outgoing, on_delivery: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    ANY_PARTITION if record.partition is None else record.partition,
                    on_delivery=on_delivery,
                    # 0 would mean "now" to the client.
                    timestamp=record.timestamp_ms or 1,
                    headers=list(record.headers),
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _flush(self, refused: list[KafkaError]) -> None:
        """Wait until the broker has all records. A commit would wait for those behind a refused one, in vain.

        Raises KafkaException with the first error of `refused`, which delivery reports fill.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while self._producer.flush(_RETRY_S) and not refused and time.monotonic() < deadline_s:
            pass
        if refused:
            raise KafkaException(refused[0])

    def _retry(self, step: Callable[[], Any]) -> None:
        """Run a step of a transaction, and repeat it after errors that the client calls retriable."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                step()
                return
            except KafkaException as problem:
                if not problem.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
                time.sleep(_RETRY_S)

    def _abort(self) -> str:
        """Abort the transaction, and return an addition to the error sentence if that failed too."""
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as problem:
            return f". It could not be aborted ({problem.args[0].str()}): the next resend or the broker will end it"
        return ""

    def _failed(self, why: KafkaError, aborting: str = "") -> PublishFailed:
        return PublishFailed(f"nothing of this transaction was resent at {self._servers}: {why.str()}{aborting}")

    def _unanswered(self, why: KafkaError) -> PublishFailed:
        return PublishFailed(
            f"{self._servers} did not answer whether it committed the last transaction: {why.str()}. Run the "
            "command again. Without --again, it sends no message twice"
        )


def _report(delivered: list[Message | None], at: int, refused: list[KafkaError]) -> Any:
    """Return an `on_delivery` that stores the message in `delivered[at]`, or its error in `refused`."""

    def report(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered[at] = message
        else:
            refused.append(error)

    return report
