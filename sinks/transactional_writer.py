"""One shard's transactional producer: writes due messages and the marker of how far it got, atomically.

A writer with the same `transactional.id` fences every earlier one, so that of a dead or paused task and its
successor only the successor can commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from conf.errors import DeliveryFailed
from conf.failpoints import failpoint
from conf.message import DELIVER_AT_HEADER, ERROR_HEADER, ERROR_TEXT_HEADER, ID_HEADER
from sinks.progress import Progress, committed_messages, read_progress

Record = tuple[int, str, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@dataclass(frozen=True)
class DeliveryPlan:
    """How a batch is delivered. Durations in ms; `options` are librdkafka's, secrets included.

    `last_writers` names, for each shard, the writer that delivered last as far as the driver knows. A process
    that still holds that writer may go on with it; any other opens one of its own and so fences it.
    """

    application_id: str
    checkpoint: str
    batch_id: int
    progress_topic: str
    slice_ms: int
    transaction_messages: int
    transaction_timeout_ms: int
    options: dict[str, str] = field(repr=False)
    last_writers: dict[int, str] = field(default_factory=dict)


class ShardWriter:
    """A producer for one shard, with the progress it knows to be committed."""

    def __init__(self, plan: DeliveryPlan, shard: int) -> None:
        """Fence earlier writers of the shard, end their open transaction, and read how far they came."""
        self.id = uuid.uuid4().hex
        self.shard = shard
        self._topic = plan.progress_topic
        self._timeout_s = plan.transaction_timeout_ms / 1000
        self._producer = Producer(
            {
                # A record's limit is the topic's; the client must not have a lower one of its own.
                "message.max.bytes": "1000000000",
                "linger.ms": "5",
                "queue.buffering.max.messages": "500000",
                **plan.options,
                "transactional.id": f"{plan.application_id}-{shard}",
                "transaction.timeout.ms": str(plan.transaction_timeout_ms),
            }
        )
        self._producer.init_transactions(self._timeout_s)
        self.progress = read_progress(plan.options, plan.progress_topic, shard)

    def begin(self) -> None:
        """Open a transaction."""
        self._producer.begin_transaction()

    def produce(self, record: Record) -> None:
        """Add a record to the open transaction; waits while the producer's queue is full."""
        deliver_at_ms, topic, partition, key, value, headers = record
        while True:
            try:
                # 0 would mean "now" to the client.
                self._producer.produce(
                    topic, value, key, partition, timestamp=max(deliver_at_ms, 1), headers=headers
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def commit(self, progress: Progress, not_before_ms: int, attempt: int) -> None:
        """Write the marker, wait until `not_before_ms` (epoch ms), and commit."""
        self._producer.produce(self._topic, progress.to_bytes(), f"shard-{self.shard}".encode(), self.shard)
        self._producer.flush(self._timeout_s)
        failpoint("transaction-open", attempt)
        # The only place where the wall clock matters, and it can do nothing but delay (invariant 4).
        while (early_ms := not_before_ms - time.time_ns() // 1_000_000) > 0:
            time.sleep(min(early_ms / 1000, 1.0))
        self._producer.commit_transaction(self._timeout_s)
        self.progress = progress
        failpoint("transaction-committed", attempt)

    def abort(self) -> None:
        """Give the open transaction up, as far as the broker can be reached: the next writer ends it anyway."""
        self._producer.purge()
        self._producer.abort_transaction(5.0)


# Opening a writer costs tens of milliseconds, and Spark reuses its Python workers.
_open_writers: dict[tuple[str, int], ShardWriter] = {}


def deliver(plan: DeliveryPlan, shard: int, messages: Iterator[pa.Table], attempt: int = 0) -> tuple[int, str]:
    """Deliver a shard's due messages, in order, and return how many this call committed, and the writer's id.

    What a killed or failed attempt committed is skipped. A transaction ends when it is full, or when the next
    message is due more than a slice later, so that nobody waits for the last message of the batch. Raises
    DeliveryFailed if a transaction cannot be completed; nothing of it is then visible.
    """
    key = (plan.application_id, shard)
    writer = _open_writers.pop(key, None)
    try:
        if writer is None or writer.id != plan.last_writers.get(shard):
            writer = ShardWriter(plan, shard)
        count = _deliver_rest(plan, writer, messages, attempt)
    except KafkaException as problem:
        raise DeliveryFailed(f"shard {shard}, batch {plan.batch_id}: {problem}") from problem
    _open_writers[key] = writer
    return count, writer.id


def _deliver_rest(plan: DeliveryPlan, writer: ShardWriter, messages: Iterator[pa.Table], attempt: int) -> int:
    skipped = committed_messages(writer.progress, plan.checkpoint, plan.batch_id)
    position, in_transaction, last_due_ms, slice_end_ms = 0, 0, 0, 0

    def commit() -> None:
        writer.commit(Progress(plan.checkpoint, plan.batch_id, position), last_due_ms, attempt)

    try:
        for record in records(messages):
            if position < skipped:
                position += 1
                continue
            if in_transaction and (in_transaction >= plan.transaction_messages or record[0] > slice_end_ms):
                commit()
                in_transaction = 0
            if not in_transaction:
                writer.begin()
                slice_end_ms = max(time.time_ns() // 1_000_000, record[0]) + plan.slice_ms
            writer.produce(record)
            position, in_transaction, last_due_ms = position + 1, in_transaction + 1, record[0]
        if in_transaction:
            commit()
    except BaseException:
        if in_transaction:
            _abort(writer)
        raise
    return position - skipped


def _abort(writer: ShardWriter) -> None:
    try:
        writer.abort()
    except KafkaException as problem:
        # The first error is the one to tell; the transaction is ended by the next writer or by its timeout.
        print(f"delayline: shard {writer.shard}: its transaction could not be aborted: {problem}", flush=True)


def records(tables: Iterator[pa.Table]) -> Iterator[Record]:
    """Turn message tables into output records: input headers first, then those of the service."""
    for table in tables:
        for chunk in table.to_batches():
            yield from _records_of(chunk)


def _records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    headers = batch.column("headers")
    # Not `values` and `offsets`, which know nothing of nulls, and of the slice that a batch can be.
    names, values = (part.to_pylist() for part in headers.flatten().flatten())
    ends = [0, *accumulate(length or 0 for length in headers.value_lengths().to_pylist())]
    columns = (
        batch.column(name).to_pylist()
        for name in (
            "deliver_at_ms", "topic", "partition", "offset", "output_topic", "output_partition", "key", "value",
            "error_code", "error_text",
        )
    )  # fmt: skip
    for row, (due, topic, partition, offset, to, to_partition, key, value, code, text) in enumerate(
        zip(*columns, strict=True)
    ):
        start, end = ends[row], ends[row + 1]
        own: list[tuple[str, bytes | None]] = list(zip(names[start:end], values[start:end], strict=True))
        own.append((ID_HEADER, f"{topic}/{partition}/{offset}".encode()))
        if code is None:
            own.append((DELIVER_AT_HEADER, str(due).encode()))
        else:
            own += [(ERROR_HEADER, code.encode()), (ERROR_TEXT_HEADER, text.encode())]
        yield due, to, to_partition, key, value, own
