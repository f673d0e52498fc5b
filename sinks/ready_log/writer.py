"""One shard's transactional producer: writes chunks to the ready log, and the marker of how far it got, atomically.

A writer with the same `transactional.id` fences every earlier one. So the writer of a dead or paused task cannot commit
after its successor has begun.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import KafkaException

from conf.errors import DeliveryFailed
from conf.failpoints import failpoint
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.lease import refuse_others
from sinks.internal_topics.log_producer import LogProducer, LogRecord, ProducerFenced
from sinks.internal_topics.progress import marker_key, read_progress
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.ready_log.chunk import MOST_DELIVERIES, chunk_record
from state.checkpoint.progress import NOT_IN_TABLE, BatchSpan, InTable, Progress

_FENCED_AT_A_TIME = 16
# How many messages of a limited output topic, or of all (None), a chunk may have.
MostOfTopics = Mapping[str | None, int]


@dataclass(frozen=True)
class StagingPlan:
    """How a batch is staged. Durations are in ms. `options` are librdkafka's, including secrets.

    - `clock_ms`: the batch's time (epoch ms), at which its dead letters are due
    - `tolerates_input_loss`: allows a batch to be replayed with fewer messages than it had
    - `last_writers`: for each shard, the id of the last writer that the driver knows of. A process that still has that
      writer may go on with it. Any other process opens a new one, which fences it, unless the lease has a later holder
      than `fencing_token`.
    - `most_deliveries`: how many requests for messages to be due at once a chunk may have
    - `most_of_topics`: how many messages of limited output topics a chunk may have
    - `transaction_bytes`: about how many bytes a transaction may have. Its messages are kept until it is committed,
      since it may have to be written again
    - `occurrences_below_ms`, `in_table`: values for the markers (`state.checkpoint.progress.Progress`), the
      former for some shards
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
    most_deliveries: int = MOST_DELIVERIES
    most_of_topics: MostOfTopics = field(default_factory=dict)
    transaction_bytes: int = 64 * 1024 * 1024
    occurrences_below_ms: dict[int, int] = field(default_factory=dict)
    in_table: InTable = NOT_IN_TABLE


class FencedBySibling(Exception):
    """Another writer of the shard has fenced this one: the transaction was too young for the broker to fence it."""


class ReadyLogWriter:
    """A producer for one shard, with the progress it knows to be committed.

    After any error it must be replaced by a new writer, which ends the open transaction. The same holds if `is_spent`:
    the last commit may have been sent twice (`conf.kafka.repeated_commit`). It does not hold if another attempt of the
    task has fenced it (`is_fenced`): a new writer would fence that one.
    """

    def __init__(self, plan: StagingPlan, shard: int) -> None:
        """Fence earlier writers of the shard, end their open transaction, and read their progress.

        Raises KafkaException, BrokerUnreachable. Raises ApplicationHeld, without fencing any writer, if another process
        has taken the lease.
        """
        self.id = uuid.uuid4().hex
        self.shard = shard
        refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
        self._plan = plan
        self._producer = LogProducer(
            plan.options,
            {},
            transactional_id(plan.application_id, shard),
            plan.transaction_timeout_ms,
            (plan.ready_topic, plan.progress_topic),
        )
        self._producer.open()
        # Again: the lease may have been taken before the last line fenced the earlier writers.
        refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
        self.progress = read_progress(plan.options, plan.progress_topic, shard, after_fencing=True)

    @property
    def is_spent(self) -> bool:
        """Whether the last commit may have been sent twice."""
        return self._producer.is_spent

    @property
    def is_fenced(self) -> bool:
        """Whether another attempt of the task has fenced the writer."""
        return self._producer.is_fenced

    @property
    def opened_for(self) -> BatchSpan:
        """The batch that opened the writer."""
        return self._plan.batch

    def write(self, chunks: Sequence[pa.Table], progress: Progress, attempt: int) -> None:
        """Write `chunks` and the marker `progress` in one transaction, and commit it.

        Raises TopicMissing, TopicMismatch or RightMissing for an internal topic that is gone, has too few partitions or
        may not be written to; FencedBySibling, now and each time after; KafkaException for other errors.
        """
        try:
            self._producer.write(self._records(chunks, progress), lambda: failpoint("transaction-open", attempt))
        except ProducerFenced as problem:
            raise FencedBySibling from problem
        self.progress = progress
        failpoint("transaction-committed", attempt)

    def _records(self, chunks: Sequence[pa.Table], progress: Progress) -> Iterator[LogRecord]:
        for messages in chunks:
            value, headers = chunk_record(messages, progress.batch.batch_id)
            yield LogRecord(self._plan.ready_topic, self.shard, value, headers=headers)
        yield LogRecord(self._plan.progress_topic, self.shard, progress.to_bytes(), marker_key(self.shard))

    def close(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.close()


def fence_writers(settings: Settings, shards: int) -> None:
    """Fence the writers of the first `shards` shards, and end their open transactions.

    Raises DeliveryFailed if that fails, RightMissing.
    """
    options, timeout_ms = librdkafka_options(settings.kafka), settings.release.transaction_timeout
    topics = (settings.ready_topic, settings.progress_topic)

    def fence(shard: int) -> None:
        try:
            LogProducer(options, {}, transactional_id(settings.application_id, shard), timeout_ms, topics).open()
        except KafkaException as problem:
            raise DeliveryFailed(f"could not fence earlier writers of shard {shard}: {problem}") from problem

    with ThreadPoolExecutor(max_workers=_FENCED_AT_A_TIME) as threads:
        list(threads.map(fence, range(shards)))
