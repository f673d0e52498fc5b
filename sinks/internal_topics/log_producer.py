"""A transactional producer for the service's own topics: all records of a transaction are committed, or none.

The ready log has one for each shard, and each lane has one. A producer with the same transactional id fences every
earlier one. So the producer of a dead or paused process cannot commit after its successor has begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer

from conf.errors import TopicMismatch, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT, OPEN_TIMEOUT_S, fatal_error_raised
from conf.kafka.error_codes import FENCED_ONCE
from conf.kafka.headers import RecordHeaders
from conf.kafka.repeated_commit import repeat_backoff, sent_once
from conf.kafka.rights import init_transactions, is_refusal, write_barred
from sinks.topics.limits import barred_topics, missing_topics

log = logging.getLogger(__name__)

# Kafka's value for a record without a timestamp, to which it applies no limit.
_NO_TIMESTAMP = -1
# An error ends a transaction, but a flush goes on until the queued records have timed out. So errors are checked
# between pieces of the flush.
_FLUSH_PIECE_S = 0.1
# The client waits for a missing topic as if its broker were away. After this time without an answer, look for topics.
_SLOW_S = 5.0
_ABORT_S = 5.0
# Errors of records that failed because of another record, or with the transaction.
_CONSEQUENCES = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_NO_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
# The client's errors, without the topic's name, for a topic that is missing or barred, or a transaction that it failed.
_OF_SOME_TOPIC = _NO_TOPIC | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._STATE,
}


class ProducerFenced(Exception):
    """Another producer has fenced this one: the transaction was too young for the broker to fence it."""


class LogRecord(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: RecordHeaders | None = None


class _Reports:
    """The first failure of a producer's records. Holds no reference to it: a cycle would delay its disconnect."""

    def __init__(self) -> None:
        self.failure: KafkaError | None = None
        self.stamp_ms: int | None = None

    def delivered(self, error: KafkaError | None, message: Any) -> None:
        """Store a record's failure, or the broker's stamp on it, if it has one; for the producer's `on_delivery`."""
        if error is None and message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME:
            self.stamp_ms = message.timestamp()[1]
        # Later failures are consequences of the first one.
        if error is not None and self.failure is None and error.code() not in _CONSEQUENCES:
            self.failure = KafkaError(error.code(), f"{message.topic()}/{message.partition()}: {error.str()}")


class LogProducer:
    """A producer that is known by its transactional id, and writes only to `topics`.

    After any error it must be replaced by a new one, which ends the open transaction. The same holds if `is_spent`: the
    last commit may have been sent twice (`conf.kafka.repeated_commit`). `is_fenced` says that another producer has
    fenced it. A new one would fence that producer.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        own: Mapping[str, str],
        transactional_id: str,
        timeout_ms: int,
        topics: tuple[str, ...],
    ) -> None:
        """Prepare the producer: see `open`.

        `options` are librdkafka's; `own` options take precedence. A transaction may be open for `timeout_ms`.
        """
        self.is_spent = self.is_fenced = False
        self._id = transactional_id
        self._topics = topics
        self._timeout_s = timeout_ms / 1000
        self._reports = _Reports()
        self._options = {**options, **own, **repeat_backoff(options)}
        self._producer = Producer(
            {
                "linger.ms": "5",
                **self._options,
                "logger": client_log(log),
                **NO_SIZE_LIMIT,
                # With fewer, a full queue would wait for `linger.ms` again and again.
                "queue.buffering.max.messages": "500000",
                # A chunk is compressed already, and as large as a batch should be.
                "compression.type": own.get("compression.type", "none"),
                # Also of success: a report ends a flush at once, which looks every 10 ms otherwise.
                "on_delivery": self._reports.delivered,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(timeout_ms),
            }
        )

    @property
    def stamp_ms(self) -> int | None:
        """The broker's stamp on the newest record that has one (epoch ms), committed or not; None without a stamp."""
        return self._reports.stamp_ms

    def open(self) -> None:
        """Fence earlier producers with this transactional id, and end their open transaction.

        Raises KafkaException, RightMissing.
        """
        timeout_s = max(self._timeout_s, OPEN_TIMEOUT_S)
        # A client that is not connected yet looks for its coordinator again only after half a second.
        self._producer.list_topics(self._topics[0], timeout_s)
        init_transactions(self._producer, self._id, timeout_s)

    def write(self, records: Iterable[LogRecord], before_commit: Callable[[], None] = lambda: None) -> None:
        """Write `records` in one transaction, and commit it.

        Raises TopicMissing, TopicMismatch or RightMissing for a topic that is gone, has too few partitions or may not
        be written to; ProducerFenced, now and each time after; KafkaException for other errors; and what
        `before_commit` raises, after which nothing is committed and the transaction is ended.
        """
        if self.is_fenced:
            raise ProducerFenced
        begun_s = time.monotonic()
        try:
            with fatal_error_raised():
                self._write(records, before_commit)
        except KafkaException as problem:
            # The broker fences the producer of a transaction too that was open for too long.
            if problem.args[0].code() in FENCED_ONCE and time.monotonic() < begun_s + self._timeout_s:
                self.is_fenced = True
                raise ProducerFenced from problem
            if problem.args[0].code() in _OF_SOME_TOPIC:
                self._look_for_topics()
            if is_refusal(problem.args[0]):
                raise write_barred(problem.args[0].str()) from problem
            if problem.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                raise TopicMismatch(
                    f"the job cannot write to {problem.args[0].str()}. Give the topic one partition for each "
                    "shard, and start the job again. Nothing is lost"
                ) from problem
            raise
        except BaseException:
            self._abort()
            raise

    def close(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.purge()

    def _abort(self) -> None:
        """End the transaction, if that works. Until the next producer with this id does, it hides records of others."""
        with suppress(KafkaException), fatal_error_raised():
            self._producer.abort_transaction(_ABORT_S)

    def _write(self, records: Iterable[LogRecord], before_commit: Callable[[], None]) -> None:
        self._producer.begin_transaction()
        for record in records:
            self._produce(record)
        # A commit that fails says less than the record to blame.
        self._flush()
        before_commit()
        commits_s = time.monotonic()
        self._producer.commit_transaction(self._timeout_s)
        self.is_spent = not sent_once(commits_s, self._options)

    def _produce(self, record: LogRecord) -> None:
        topic, partition, value, key, headers = record
        while True:
            try:
                # No timestamp: the topics may limit it by the broker's clock, and this host's may be an hour ahead.
                self._producer.produce(topic, value, key, partition, timestamp=_NO_TIMESTAMP, headers=headers or [])
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as problem:
                # An earlier record failed the transaction, and its error is more specific.
                self._producer.poll(0)
                self._check()
                error = problem.args[0]
                # No earlier error was reported yet, and the client's own text names no topic.
                if error.code() == KafkaError._UNKNOWN_PARTITION:
                    raise KafkaException(KafkaError(error.code(), f"{topic}/{partition}: {error.str()}")) from problem
                raise
            finally:
                self._check()

    def _flush(self) -> None:
        """Wait until the brokers have all records; until the transaction's timeout at most."""
        begun_s = time.monotonic()
        asked = False
        while self._producer.flush(_FLUSH_PIECE_S):
            self._check()
            waited_s = time.monotonic() - begun_s
            if waited_s > self._timeout_s:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, f"no confirmation of records after {waited_s:.0f} s")
                )
            if waited_s > _SLOW_S and not asked:
                asked = True
                self._look_for_topics()
        self._check()

    def _check(self) -> None:
        """Raise the error of the first record that failed, if one did."""
        if self._reports.failure is not None:
            raise KafkaException(self._reports.failure)

    def _look_for_topics(self) -> None:
        """Raise TopicMissing or RightMissing for a topic that is gone, or may not be written to."""
        for topic in missing_topics(self._options, self._topics):
            raise TopicMissing(
                f"topic {topic} is gone. Restore it, or create it with `delayline topics create`, and start "
                "the job again"
            )
        for topic in barred_topics(self._options, self._topics):
            raise write_barred(topic)
