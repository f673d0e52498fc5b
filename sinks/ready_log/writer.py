"""One shard's transactional producer: writes chunks to the ready log, and the marker of how far it got, atomically.

A writer with the same `transactional.id` fences every earlier one, so that of a dead or paused task and its
successor only the successor can commit.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from conf.errors import DeliveryFailed, TopicMismatch, TopicMissing
from conf.failpoints import failpoint
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT, OPEN_TIMEOUT_S, fatal_error_raised
from conf.kafka.error_codes import FENCED
from conf.kafka.options import librdkafka_options
from conf.kafka.repeated_commit import repeat_backoff, sent_once
from conf.kafka.rights import init_transactions, is_refusal, write_barred
from conf.settings import Settings
from sinks.internal_topics.lease import refuse_others
from sinks.internal_topics.progress import marker_key, read_progress
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.ready_log.chunk import RecordHeaders, chunk_record
from sinks.topics.limits import barred_topics, missing_topics
from state.checkpoint.progress import BatchSpan, Progress

log = logging.getLogger(__name__)

_FENCED_AT_A_TIME = 16
# Kafka's value for a record without a timestamp, to which it applies no limit.
_NO_TIMESTAMP = -1
# An error ends a transaction, but a flush goes on until the queued records have timed out. So errors are checked
# between pieces of the flush.
_FLUSH_PIECE_S = 0.1
# The client waits for a missing topic as if its broker were away. After this time without an answer, look for topics.
_SLOW_S = 5.0
# Errors of records that failed because of another record, or with the transaction.
_CONSEQUENCES = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_NO_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
# Each call of a writer that was fenced once fails by the client's own code.
_FENCED = FENCED | {KafkaError._FATAL}
# The client's errors, without the topic's name, for a topic that is missing or barred, or a transaction that it failed.
_OF_SOME_TOPIC = _NO_TOPIC | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._STATE,
}


@dataclass(frozen=True)
class HandOverPlan:
    """How a batch is handed over. Durations in ms; `options` are librdkafka's, secrets included.

    - `clock_ms`: the batch's time (epoch ms), at which its dead letters are due
    - `results_topic`: the topic of the answers to asks
    - `tolerates_input_loss`: allows a batch to be replayed with fewer messages than it had
    - `last_writers`: for each shard, the id of the writer that was last as far as the driver knows. A process that
      still has that writer may go on with it. Any other process opens a new one, which fences it, unless the lease has
      a later holder than `fencing_token`.
    """

    application_id: str
    batch: BatchSpan
    clock_ms: int
    progress_topic: str
    ready_topic: str
    lease_topic: str
    fencing_token: int
    transaction_timeout_ms: int
    outage_limit_ms: int
    tolerates_input_loss: bool
    options: dict[str, str] = field(repr=False)
    last_writers: dict[int, str] = field(default_factory=dict)
    results_topic: str = ""


class FencedBySibling(Exception):
    """Another writer of the shard has fenced this one: its transaction was too young for the broker to do it."""


class _Reports:
    """The first failure of a producer's records. Holds no reference to it: a cycle would delay its disconnect."""

    def __init__(self) -> None:
        self.failure: KafkaError | None = None

    def failed(self, error: KafkaError, message: Any) -> None:
        """Store a record's failure; for the producer's `on_delivery`."""
        # What follows the first failure is its consequence.
        if self.failure is None and error.code() not in _CONSEQUENCES:
            self.failure = KafkaError(error.code(), f"{message.topic()}/{message.partition()}: {error.str()}")


class ReadyLogWriter:
    """A producer for one shard, with the progress it knows to be committed.

    After any error it must be replaced by a new writer, which ends the open transaction. The same holds if `is_spent`:
    the last commit may have been sent twice (`conf.kafka.repeated_commit`). It does not hold if another attempt of the
    task has fenced it (`is_fenced`): a new writer would fence that one.
    """

    def __init__(self, plan: HandOverPlan, shard: int) -> None:
        """Fence earlier writers of the shard, end their open transaction, and read their progress.

        Raises KafkaException, BrokerUnreachable; and ApplicationHeld, and fences nobody, if another process has taken
        the lease.
        """
        self.id = uuid.uuid4().hex
        self.shard = shard
        self.is_spent = False
        refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
        self._plan = plan
        self._timeout_s = plan.transaction_timeout_ms / 1000
        self._reports = _Reports()
        self.is_fenced = False
        self._options = {**plan.options, **repeat_backoff(plan.options)}
        self._producer = Producer(
            {
                "linger.ms": "5",
                **self._options,
                "logger": client_log(log),
                **NO_SIZE_LIMIT,
                # With fewer, a full queue would wait for `linger.ms` again and again.
                "queue.buffering.max.messages": "500000",
                # A chunk is compressed already, and as large as a batch should be.
                "compression.type": "none",
                "delivery.report.only.error": True,
                "on_delivery": self._reports.failed,
                "transactional.id": transactional_id(plan.application_id, shard),
                "transaction.timeout.ms": str(plan.transaction_timeout_ms),
            }
        )
        own_id = transactional_id(plan.application_id, shard)
        init_transactions(self._producer, own_id, max(self._timeout_s, OPEN_TIMEOUT_S))
        # Again: the lease may have been taken before the last line fenced the earlier writers.
        refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
        self.progress = read_progress(plan.options, plan.progress_topic, shard, after_fencing=True)

    @property
    def opened_for(self) -> BatchSpan:
        """The batch that opened the writer."""
        return self._plan.batch

    def write(self, chunks: Sequence[pa.Table], progress: Progress, attempt: int) -> None:
        """Write `chunks` and the marker `progress` in one transaction, and commit it.

        Raises TopicMissing, TopicMismatch or RightMissing for an internal topic that is gone, has too few partitions or
        may not be written to; FencedBySibling, now and each time after; KafkaException for other errors.
        """
        if self.is_fenced:
            raise FencedBySibling
        begun_s = time.monotonic()
        try:
            with fatal_error_raised():
                self._write(chunks, progress, attempt)
        except KafkaException as problem:
            # The broker fences the producer of a transaction too that was open for too long.
            if problem.args[0].code() in _FENCED and time.monotonic() < begun_s + self._timeout_s:
                self.is_fenced = True
                raise FencedBySibling from problem
            if problem.args[0].code() in _OF_SOME_TOPIC:
                self._look_for_topics()
            if is_refusal(problem.args[0]):
                raise write_barred(problem.args[0].str()) from problem
            if problem.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                raise TopicMismatch(
                    f"the job cannot write to {problem.args[0].str()}: give the topic a partition for each shard, and "
                    "start the job again. Nothing is lost"
                ) from problem
            raise
        self.progress = progress
        failpoint("transaction-committed", attempt)

    def _write(self, chunks: Sequence[pa.Table], progress: Progress, attempt: int) -> None:
        self._producer.begin_transaction()
        for messages in chunks:
            value, headers = chunk_record(messages, progress.batch.batch_id, self._plan.results_topic)
            self._produce(self._plan.ready_topic, value, None, headers)
        self._produce(self._plan.progress_topic, progress.to_bytes(), marker_key(self.shard), [])
        # Also without a failpoint: a commit that fails says less than the record to blame.
        self._flush()
        failpoint("transaction-open", attempt)
        commits_s = time.monotonic()
        self._producer.commit_transaction(self._timeout_s)
        self.is_spent = not sent_once(commits_s, self._options)

    def close(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.purge()

    def _produce(self, topic: str, value: bytes, key: bytes | None, headers: RecordHeaders) -> None:
        while True:
            try:
                # No timestamp: the topics may limit it by the broker's clock, and this host's may be an hour ahead.
                self._producer.produce(topic, value, key, self.shard, timestamp=_NO_TIMESTAMP, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as problem:
                # An earlier record failed the transaction, and its error is more specific.
                self._producer.poll(0)
                self._check()
                error = problem.args[0]
                # Not told yet of an earlier one, and the client's own text names no topic.
                if error.code() == KafkaError._UNKNOWN_PARTITION:
                    raise KafkaException(KafkaError(error.code(), f"{topic}/{self.shard}: {error.str()}")) from problem
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
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"records unconfirmed after {waited_s:.0f} s"))
            if waited_s > _SLOW_S and not asked:
                asked = True
                self._look_for_topics()
        self._check()

    def _check(self) -> None:
        """Raise the error of the first record that failed, if one did."""
        if self._reports.failure is not None:
            raise KafkaException(self._reports.failure)

    def _look_for_topics(self) -> None:
        """Raise TopicMissing or RightMissing for an internal topic that is gone, or may not be written to."""
        topics = (self._plan.ready_topic, self._plan.progress_topic)
        for topic in missing_topics(self._plan.options, topics):
            raise TopicMissing(
                f"{topic} is gone: restore the topic, or create it with `delayline topics create`, and start the job "
                "again"
            )
        for topic in barred_topics(self._plan.options, topics):
            raise write_barred(topic)


def fence_writers(settings: Settings, shards: int) -> None:
    """Fence the writers of the first `shards` shards, and end their open transactions.

    Raises DeliveryFailed if that fails, RightMissing.
    """
    timeout_s = settings.release.transaction_timeout / 1000

    def fence(shard: int) -> None:
        own = {
            "transactional.id": transactional_id(settings.application_id, shard),
            "transaction.timeout.ms": str(settings.release.transaction_timeout),
        }
        try:
            producer = Producer({**librdkafka_options(settings.kafka), **own}, logger=client_log(log))
            init_transactions(producer, own["transactional.id"], max(timeout_s, OPEN_TIMEOUT_S))
        except KafkaException as problem:
            raise DeliveryFailed(f"earlier writers of shard {shard} could not be fenced: {problem}") from problem

    with ThreadPoolExecutor(max_workers=_FENCED_AT_A_TIME) as threads:
        list(threads.map(fence, range(shards)))
