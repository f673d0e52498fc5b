"""One shard's transactional producer: writes due messages and the marker of how far it got, atomically.

A writer with the same `transactional.id` fences every earlier one, so that of a dead or paused task and its
successor only the successor can commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from conf.errors import DeliveryFailed
from conf.failpoints import failpoint
from conf.kafka.clients import OPEN_TIMEOUT_S
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.delivery.record_check import RecordCheck, Refusals, compresses, largest_batch, sizes
from sinks.delivery.records import Record, records
from sinks.delivery.reports import DeliveryReports, topic_barred, topic_gone
from sinks.delivery.transactions import Transaction
from sinks.delivery.wall_clock import wait_until
from sinks.internal_topics.lease import refuse_others
from sinks.internal_topics.progress import marker_key, read_progress
from sinks.topics.limits import barred_topics, missing_topics, read_limits
from state.checkpoint.progress import BatchSpan, Progress

# An error ends a transaction, but a flush goes on until the queued records have timed out. So errors are checked
# between pieces of the flush.
_FLUSH_PIECE_S = 0.1
# The client waits for a missing topic as if its broker were away. After this time without an answer, look for topics.
_SLOW_S = 5.0
# The client's errors, without the topic's name, for a topic that is missing or barred, or a transaction that it failed.
_OF_SOME_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._STATE}
# Kafka's value for a record without a timestamp, to which it applies no limit.
_NO_TIMESTAMP = -1
_FENCED_AT_A_TIME = 16


@dataclass(frozen=True)
class DeliveryPlan:
    """How a batch is delivered. Durations in ms; `options` are librdkafka's, secrets included.

    `topics` may be written to. `messages_per_second` is the most that each shard may deliver, 0 for any.
    `tolerates_input_loss` allows a batch to be replayed with fewer messages than it had.
    `last_writers` has, for each shard, the id of the writer that delivered last as far as the driver knows. A process
    that still has that writer may go on with it. Any other process opens a new one, which fences it, unless the lease
    has a later holder than `fencing_token`.
    """

    application_id: str
    batch: BatchSpan
    progress_topic: str
    lease_topic: str
    fencing_token: int
    dead_letter: str
    topics: tuple[str, ...]
    slice_ms: int
    messages_per_second: float
    transaction_messages: int
    transaction_timeout_ms: int
    outage_limit_ms: int
    tolerates_input_loss: bool
    options: dict[str, str] = field(repr=False)
    last_writers: dict[int, str] = field(default_factory=dict)


class ShardWriter:
    """A producer for one shard, with the progress it knows to be committed.

    After any error it must be replaced by a new writer, which ends the open transaction.
    """

    def __init__(self, plan: DeliveryPlan, shard: int, topics: Collection[str] = ()) -> None:
        """Fence earlier writers of the shard, end their open transaction, and read their progress.

        `topics` will be written to, besides those of the plan. Raises KafkaException, BrokerUnreachable; and
        ApplicationHeld, and fences nobody, if another process has taken the lease.
        """
        self.id = uuid.uuid4().hex
        self.shard = shard
        self.limits = read_limits(plan.options, {*plan.topics, plan.dead_letter, *topics})
        refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
        self._plan = plan
        self._timeout_s = plan.transaction_timeout_ms / 1000
        self._reports = DeliveryReports()
        self._producer = Producer(
            {
                # The topic limits a record's size; the client must not have a lower limit.
                "message.max.bytes": "1000000000",
                "linger.ms": "5",
                "queue.buffering.max.messages": "500000",
                **plan.options,
                # The partitioner of Java's client; librdkafka's default differs.
                "partitioner": "murmur2_random",
                # Then only a record alone in its batch can be too large for its topic.
                "batch.size": str(largest_batch(plan.options, sizes(self.limits))),
                "delivery.report.only.error": True,
                "on_delivery": self._reports.failed,
                "transactional.id": transactional_id(plan.application_id, shard),
                "transaction.timeout.ms": str(plan.transaction_timeout_ms),
            }
        )
        self._producer.init_transactions(max(self._timeout_s, OPEN_TIMEOUT_S))
        # Again: the lease may have been taken before the last line fenced the earlier writers.
        refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
        self.progress = read_progress(plan.options, plan.progress_topic, shard)

    def begin(self) -> None:
        """Open a transaction."""
        self._producer.begin_transaction()

    def write(self, transaction: Transaction, progress: Progress, attempt: int, refused: Refusals) -> None:
        """Write the messages and the marker `progress`, wait until the last one is due, and commit.

        A message that its topic does not accept, or has `refused` before, is written to the dead-letter topic. Raises
        Refused if a topic refuses a record that was expected to be accepted; TopicMissing or TopicMismatch for a topic
        that was deleted, or that the login may not write to; DeadLetterRefused; DeliveryFailed if the clock was set
        back meanwhile, so that the transaction would time out; KafkaException for other errors.
        """
        check = self._learn_limits(transaction, refused)
        topics = {*transaction.topics, self._plan.progress_topic, self._plan.dead_letter}
        self.begin()
        if attempt:
            # A missing topic may be why the previous attempt failed, after a long wait.
            self._look_for(topics)
        try:
            self._fill(transaction, progress, check)
            self._flush(topics)
            failpoint("transaction-open", attempt)
            self._wait_until_due(transaction, progress)
            self._producer.commit_transaction(self._timeout_s)
        except KafkaException as problem:
            if problem.args[0].code() in _OF_SOME_TOPIC:
                self._look_for(topics)
            raise
        self.progress = progress
        failpoint("transaction-committed", attempt)

    def abort(self) -> None:
        """Abort the open transaction if the broker can be reached; the next writer ends it in any case."""
        self.drop()
        self._producer.abort_transaction(5.0)

    def drop(self) -> None:
        """Discard the queued records, so that closing the writer does not wait for them."""
        self._producer.purge()

    def _learn_limits(self, transaction: Transaction, refused: Refusals) -> RecordCheck:
        """Read unknown limits; before a record is refused, read all of them again: they may have been raised."""
        topics = transaction.topics | self.limits.keys()
        if unknown := topics - self.limits.keys():
            self.limits = self.limits | read_limits(self._plan.options, unknown)
        check = self._check(refused)
        if all(map(check.admits_all, transaction.parts, transaction.largest_bytes)):
            return check
        self.limits = read_limits(self._plan.options, topics)
        return self._check(refused)

    def _check(self, refused: Refusals) -> RecordCheck:
        return RecordCheck(self.limits, self._plan.dead_letter, compresses(self._plan.options), refused)

    def _fill(self, transaction: Transaction, progress: Progress, check: RecordCheck) -> None:
        for part, largest in zip(transaction.parts, transaction.largest_bytes, strict=True):
            if check.admits_all(part, largest):
                self._produce(records(part))
            else:
                self._produce_checked(part, check)
        # No timestamp: the due time may be older than the broker admits, and the present time of this host later than
        # it admits, since the host's clock may be an hour ahead.
        marker = (marker_key(self.shard), progress.to_bytes())
        self._produce([Record(_NO_TIMESTAMP, self._plan.progress_topic, self.shard, *marker, [])])

    def _wait_until_due(self, transaction: Transaction, progress: Progress) -> None:
        if not wait_until(transaction.last.deliver_at_ms, self._plan.transaction_timeout_ms // 2):
            raise DeliveryFailed(
                f"shard {self.shard}, batch {progress.batch.batch_id}: this host's clock was set back while a "
                "transaction was open. It is aborted, and opened again when its messages are nearly due"
            )

    def _produce_checked(self, batch: pa.RecordBatch, check: RecordCheck) -> None:
        for record in map(check.admitted, records(batch), batch.column("timestamp_ms").to_pylist()):
            self._produce([record], self._reports.of_tried(record) if check.is_tried(record) else None)

    def _produce(self, batch: Iterable[Record], on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Add records to the open transaction; waits while the producer's queue is full."""
        produce = self._producer.produce
        more = {"on_delivery": on_delivery} if on_delivery else {}
        for deliver_at_ms, topic, partition, key, value, headers in batch:
            while True:
                try:
                    # 0 would mean "now" to the client.
                    produce(topic, value, key, partition, timestamp=deliver_at_ms or 1, headers=list(headers), **more)
                    break
                except BufferError:
                    self._producer.poll(0.1)
                    self._reports.check()
                except KafkaException as problem:
                    # An earlier record failed the transaction, and its error is more specific.
                    self._producer.poll(0)
                    self._reports.check()
                    raise self._reports.error(problem.args[0], topic, partition) from problem

    def _flush(self, topics: Collection[str]) -> None:
        """Wait until the brokers have all records; until the transaction's timeout at most."""
        begun_s = time.monotonic()
        asked = False
        while self._producer.flush(_FLUSH_PIECE_S):
            self._reports.check()
            waited_s = time.monotonic() - begun_s
            if waited_s > self._timeout_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"records unconfirmed after {waited_s:.0f} s"))
            if waited_s > _SLOW_S and not asked:
                asked = True
                self._look_for(topics)
        self._reports.check()

    def _look_for(self, topics: Collection[str]) -> None:
        for topic in missing_topics(self._plan.options, topics):
            raise topic_gone(topic)
        for topic in barred_topics(self._plan.options, topics):
            raise topic_barred(topic)


def fence_writers(settings: Settings, shards: int) -> None:
    """Fence the writers of the first `shards` shards, and end their open transactions.

    Raises DeliveryFailed if that fails.
    """
    timeout_s = settings.delivery.transaction_timeout / 1000

    def fence(shard: int) -> None:
        own = {
            "transactional.id": transactional_id(settings.application_id, shard),
            "transaction.timeout.ms": str(settings.delivery.transaction_timeout),
        }
        try:
            Producer({**librdkafka_options(settings.kafka), **own}).init_transactions(max(timeout_s, OPEN_TIMEOUT_S))
        except KafkaException as problem:
            raise DeliveryFailed(f"earlier writers of shard {shard} could not be fenced: {problem}") from problem

    with ThreadPoolExecutor(max_workers=_FENCED_AT_A_TIME) as threads:
        list(threads.map(fence, range(shards)))


def transactional_id(application_id: str, shard: int) -> str:
    """Return the name under which a shard's writers fence each other."""
    return f"{application_id}-{shard}"
