"""The job's own records in the recalled topic: from where on it knows messages, and deletions of old records."""

from __future__ import annotations

from collections.abc import Iterable

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.log_producer import LogProducer, LogRecord
from sinks.internal_topics.newest_record import newest_value
from sinks.internal_topics.transactional_ids import transactional_id
from state.cancel import MessageId
from state.message_ids import id_text
from state.recalled import (
    KNOWN_FROM_KEY,
    KNOWN_FROM_PARTITION,
    KnownFrom,
    is_known_from,
    known_from_record,
    read_known_from,
    recall_key,
)


class RecalledWriter:
    """A producer that fences the one before, and then reads the newest `KnownFrom`, so that this never goes back.

    `known_from` is None if the topic is new and has no such record.
    """

    def __init__(self, settings: Settings) -> None:
        """Fence earlier writers.

        Raises KafkaException, BrokerUnreachable, RightMissing, TopicMissing, FormatMismatch.
        """
        self._topic = settings.recalled_topic
        self._options = librdkafka_options(settings.kafka)
        self._id = transactional_id(settings.application_id, "recalled")
        self._timeout_ms = settings.release.transaction_timeout
        self._producer = self._opened()
        try:
            value = newest_value(
                self._options, self._topic, KNOWN_FROM_PARTITION, after_fencing=True, is_own=is_known_from
            )
            self.known_from = None if value is None else read_known_from(value)
        except BaseException:
            self.close()
            raise

    def move(self, known_from: KnownFrom) -> None:
        """Write from where on messages are known. Raises the errors of `LogProducer.write`."""
        self._write([LogRecord(self._topic, KNOWN_FROM_PARTITION, known_from_record(known_from), KNOWN_FROM_KEY)])
        self.known_from = known_from

    def delete(self, recalls: Iterable[tuple[int, int, MessageId]]) -> None:
        """Delete records, by their partition, their epoch and the id of the message.

        Raises what `LogProducer.write` does.
        """
        self._write(
            LogRecord(self._topic, partition, None, recall_key(epoch, id_text(identity)))
            for partition, epoch, identity in recalls
        )

    def close(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.close()

    def _write(self, records: Iterable[LogRecord]) -> None:
        if self._producer.is_spent:
            self._producer = self._opened()
        self._producer.write(records)

    def _opened(self) -> LogProducer:
        producer = LogProducer(self._options, {}, self._id, self._timeout_ms, (self._topic,))
        producer.open()
        return producer
