"""Sending dead letters to their input topics again, in transactions that also keep how far they are resent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from conf.errors import PublishFailed
from conf.kafka.clients import make_client
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.delivery.record_check import largest_batch
from sinks.delivery.records import ANY_PARTITION

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


class Resender:
    """A transactional producer. A new one of the same application fences the one before."""

    def __init__(self, settings: Settings, limits: Mapping[str, int]) -> None:
        """`limits` are max.message.bytes of the input topics. Raises PublishFailed if the broker does not admit it."""
        self._timeout_s = settings.delivery.transaction_timeout / 1000
        self._topic = settings.topics.dead_letter
        self._servers = settings.kafka.bootstrap_servers
        options = librdkafka_options(settings.kafka)
        self._producer = make_client(
            Producer,
            {
                "log_level": "3",
                # A record's limit is the topic's; the client must not have a lower one of its own.
                "message.max.bytes": "1000000000",
                **options,
                # Only what is alone in its batch can then be too large for its topic.
                "batch.size": str(largest_batch(options, limits)),
                # Java's, where librdkafka has another by default.
                "partitioner": "murmur2_random",
                "transactional.id": f"{settings.application_id}-resend",
                "transaction.timeout.ms": str(settings.delivery.transaction_timeout),
            },
        )
        try:
            self._retry(lambda: self._producer.init_transactions(self._timeout_s))
        except KafkaException as problem:
            raise self._failed(problem.args[0]) from problem

    def send(self, records: Sequence[Outgoing], positions: Mapping[int, tuple[int, str]], group: Any) -> list[str]:
        """Send `records` and keep `positions` of the dead-letter topic's partitions for `group`, all or nothing.

        A position is the offset and the text that Kafka keeps. Returns the ids of the records, in their order. Raises
        PublishFailed, with nothing of it visible, or without an answer to the commit.
        """
        landed: list[Message | None] = [None] * len(records)
        refused: list[KafkaError] = []
        committing = False
        try:
            self._producer.begin_transaction()
            for at, record in enumerate(records):
                self._produce(record, _landing(landed, at, refused))
            kept = [TopicPartition(self._topic, number, *position) for number, position in positions.items()]
            self._retry(lambda: self._producer.send_offsets_to_transaction(kept, group, self._timeout_s))
            committing = True
            self._retry(lambda: self._producer.commit_transaction(self._timeout_s))
        except KafkaException as problem:
            error = problem.args[0]
            if committing and error.retriable():
                raise self._unanswered(error) from problem
            raise self._failed(refused[0] if refused else error, self._abort()) from problem
        return [f"{each.topic()}/{each.partition()}/{each.offset()}" for each in landed if each is not None]

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

    def _retry(self, step: Callable[[], Any]) -> None:
        """Take a step of a transaction, again where the client says that it may be taken again."""
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
        """Abort the transaction; return what to say of it if that failed too."""
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as problem:
            return f"; it could not be aborted ({problem.args[0].str()}), and is ended by the next resend or the broker"
        return ""

    def _failed(self, why: KafkaError, aborting: str = "") -> PublishFailed:
        return PublishFailed(f"nothing of this transaction was resent at {self._servers}: {why.str()}{aborting}")

    def _unanswered(self, why: KafkaError) -> PublishFailed:
        return PublishFailed(
            f"{self._servers} did not say whether it committed the last transaction: {why.str()}. Run the command "
            "again: what was resent is not sent a second time, unless with --again"
        )


def _landing(landed: list[Message | None], at: int, refused: list[KafkaError]) -> Any:
    def told(error: KafkaError | None, message: Message) -> None:
        if error is None:
            landed[at] = message
        else:
            refused.append(error)

    return told
