"""One shard's transactional producer: writes due messages and the marker of how far it got, atomically.

A writer with the same `transactional.id` fences every earlier one, so that of a dead or paused task and its
successor only the successor can commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException, Producer

from conf.errors import DeliveryFailed
from conf.failpoints import failpoint
from conf.kafka_options import librdkafka_options
from conf.message import DELIVER_AT_HEADER, ERROR_HEADER, ERROR_TEXT_HEADER, ID_HEADER, ORDER, Key
from conf.progress import BatchSpan, Progress, committed_messages
from conf.settings import Settings
from sinks.lease import refuse_others
from sinks.pace import Pace
from sinks.progress import marker_key, read_progress

# How long before its first message is due a transaction is opened, at the earliest: time enough to fill it.
_OPEN_AHEAD_MS = 1_000
_FENCED_AT_A_TIME = 16

Record = tuple[int, str, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@dataclass(frozen=True)
class DeliveryPlan:
    """How a batch is delivered. Durations in ms; `options` are librdkafka's, secrets included.

    `messages_per_second` is the most that each shard may deliver, 0 for any.

    `last_writers` names, for each shard, the writer that delivered last as far as the driver knows. A process
    that still holds that writer may go on with it; any other opens one of its own and so fences it, unless a later
    holder of the lease than `lease_number` is there.
    """

    application_id: str
    batch: BatchSpan
    progress_topic: str
    lease_topic: str
    lease_number: int
    slice_ms: int
    messages_per_second: float
    transaction_messages: int
    transaction_timeout_ms: int
    options: dict[str, str] = field(repr=False)
    last_writers: dict[int, str] = field(default_factory=dict)


class ShardWriter:
    """A producer for one shard, with the progress it knows to be committed."""

    def __init__(self, plan: DeliveryPlan, shard: int) -> None:
        """Fence earlier writers of the shard, end their open transaction, and read how far they came.

        Raises ApplicationHeld, and fences nobody, if another process has taken the lease.
        """
        refuse_others(plan.options, plan.lease_topic, plan.lease_number)
        self.id = uuid.uuid4().hex
        self.shard = shard
        self.pace = Pace(plan.messages_per_second)
        self._topic = plan.progress_topic
        self._timeout_s = plan.transaction_timeout_ms / 1000
        self._longest_wait_ms = plan.transaction_timeout_ms // 2
        self._producer = Producer(
            {
                # A record's limit is the topic's; the client must not have a lower one of its own.
                "message.max.bytes": "1000000000",
                "linger.ms": "5",
                "queue.buffering.max.messages": "500000",
                **plan.options,
                "transactional.id": transactional_id(plan.application_id, shard),
                "transaction.timeout.ms": str(plan.transaction_timeout_ms),
            }
        )
        self._producer.init_transactions(self._timeout_s)
        # Again: it may have been taken before the last line shut the earlier writers out.
        refuse_others(plan.options, plan.lease_topic, plan.lease_number)
        self.progress = read_progress(plan.options, plan.progress_topic, shard)

    def begin(self) -> None:
        """Open a transaction."""
        self._producer.begin_transaction()

    def produce(self, records: Iterable[Record]) -> None:
        """Add records to the open transaction; waits while the producer's queue is full."""
        produce = self._producer.produce
        for deliver_at_ms, topic, partition, key, value, headers in records:
            while True:
                try:
                    # 0 would mean "now" to the client.
                    produce(topic, value, key, partition, timestamp=deliver_at_ms or 1, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.1)

    def commit(self, progress: Progress, not_before_ms: int, attempt: int) -> None:
        """Write the marker, wait until `not_before_ms` (epoch ms), and commit.

        Raises DeliveryFailed if the clock was set back since the transaction was opened, so that it would time out.
        """
        # Stamped like its last message. The host's clock may be an hour ahead, and the broker would refuse that.
        self.produce([(not_before_ms, self._topic, self.shard, marker_key(self.shard), progress.to_bytes(), [])])
        self._producer.flush(self._timeout_s)
        failpoint("transaction-open", attempt)
        if not _wait_until(not_before_ms, self._longest_wait_ms):
            raise DeliveryFailed(
                f"shard {self.shard}, batch {progress.batch.batch_id}: this host's clock was set back while a "
                "transaction was open. It is given up, and opened again when its messages are nearly due"
            )
        self._producer.commit_transaction(self._timeout_s)
        self.progress = progress
        failpoint("transaction-committed", attempt)

    def abort(self) -> None:
        """Give the open transaction up, as far as the broker can be reached: the next writer ends it anyway."""
        self._producer.purge()
        self._producer.abort_transaction(5.0)


def _wait_until(instant_ms: int, longest_ms: int | None = None) -> bool:
    """Wait until the host's clock shows `instant_ms` (epoch ms). Returns whether it does: not if over `longest_ms` off.

    The only place where the wall clock matters, and it can do nothing but delay (invariant 4).
    """
    while (early_ms := instant_ms - _now_ms()) > 0:
        if longest_ms is not None and early_ms > longest_ms:
            return False
        # In short pieces, since the clock may be set meanwhile.
        time.sleep(min(early_ms / 1000, 1.0))
    return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def fence_writers(settings: Settings, shards: int) -> None:
    """Let no writer of the first `shards` shards commit any more, and end their open transactions.

    Raises DeliveryFailed if the broker does not do so.
    """
    timeout_s = settings.delivery.transaction_timeout / 1000

    def fence(shard: int) -> None:
        name = transactional_id(settings.application_id, shard)
        try:
            Producer({**librdkafka_options(settings.kafka), "transactional.id": name}).init_transactions(timeout_s)
        except KafkaException as problem:
            raise DeliveryFailed(f"earlier writers of shard {shard} could not be fenced: {problem}") from problem

    with ThreadPoolExecutor(max_workers=_FENCED_AT_A_TIME) as threads:
        list(threads.map(fence, range(shards)))


def transactional_id(application_id: str, shard: int) -> str:
    """Return the name under which a shard's writers fence each other."""
    return f"{application_id}-{shard}"


# Opening a writer costs tens of milliseconds, and Spark reuses its Python workers.
_open_writers: dict[tuple[str, int], ShardWriter] = {}


def deliver(plan: DeliveryPlan, shard: int, messages: Iterator[pa.Table], attempt: int = 0) -> tuple[int, str]:
    """Deliver a shard's due messages, in order, and return how many this call committed, and the writer's id.

    What a killed or failed attempt committed is skipped. A transaction ends when it is full, or when the next
    message is due more than a slice later, so that nobody waits for the last message of the batch. It begins when
    its first message is nearly due: one that is open for long is ended by the broker. Raises DeliveryFailed if a
    transaction cannot be completed; nothing of it is then visible.
    """
    key = (plan.application_id, shard)
    writer = _open_writers.pop(key, None)
    try:
        if writer is None or writer.id != plan.last_writers.get(shard):
            writer = ShardWriter(plan, shard)
        count = _deliver_rest(plan, writer, messages, attempt)
    except KafkaException as problem:
        raise DeliveryFailed(f"shard {shard}, batch {plan.batch.batch_id}: {problem}") from problem
    _open_writers[key] = writer
    return count, writer.id


def _deliver_rest(plan: DeliveryPlan, writer: ShardWriter, messages: Iterator[pa.Table], attempt: int) -> int:
    skipped = committed_messages(writer.progress, plan.batch)
    # A transaction waits inside for this much of due time at most, and so for half of its timeout.
    ahead_ms, slice_ms = (min(ms, plan.transaction_timeout_ms // 4) for ms in (_OPEN_AHEAD_MS, plan.slice_ms))
    most = writer.pace.most_at_once(plan.transaction_messages)
    position, in_transaction, slice_end_ms = 0, 0, 0
    last: Key = (0, "", 0, 0)

    def commit() -> None:
        writer.commit(Progress(plan.batch, position, last), last[0], attempt)

    try:
        for batch in (batch for table in messages for batch in table.to_batches()):
            at = min(batch.num_rows, max(0, skipped - position))
            position += at
            rows = records(batch.slice(at))
            dues = batch.column("deliver_at_ms").to_numpy()
            while at < len(dues):
                if in_transaction and (in_transaction >= most or dues[at] > slice_end_ms):
                    commit()
                    in_transaction = 0
                if not in_transaction:
                    writer.pace.wait()
                    _wait_until(int(dues[at]) - ahead_ms)
                    writer.begin()
                    slice_end_ms = max(_now_ms(), int(dues[at])) + slice_ms
                fitting = int(np.searchsorted(dues[at:], slice_end_ms, side="right"))
                count = min(fitting, most - in_transaction)
                in_transaction += count
                writer.pace.spend(count)
                writer.produce(islice(rows, count))
                at, position = at + count, position + count
                last = tuple(batch.column(name)[at - 1].as_py() for name, _ in ORDER)
        if in_transaction:
            commit()
    except BaseException:
        if in_transaction:
            _abort(writer)
        raise
    return max(0, position - skipped)


def _abort(writer: ShardWriter) -> None:
    try:
        writer.abort()
    except KafkaException as problem:
        # The first error is the one to tell; the transaction is ended by the next writer or by its timeout.
        print(f"delayline: shard {writer.shard}: its transaction could not be aborted: {problem}", flush=True)


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Turn messages into output records: input headers first, then those of the service."""
    # A message has a few microseconds in all, so that what can be made a column at a time is.
    dues = batch.column("deliver_at_ms")
    places = [batch.column("topic"), batch.column("partition").cast(pa.string())]
    ids = pc.binary_join_element_wise(*places, batch.column("offset").cast(pa.string()), "/")
    headers = batch.column("headers")
    ends = headers.offsets.to_numpy().tolist()
    inputs = list(zip(_list(headers.values.field(0)), _list(headers.values.field(1)), strict=True))
    columns = [
        dues,
        *(batch.column(name) for name in ("output_topic", "output_partition", "key", "value")),
        ids.cast(pa.binary()),
        dues.cast(pa.string()).cast(pa.binary()),
        *(batch.column(name) for name in ("error_code", "error_text")),
    ]
    for start, end, due, topic, partition, key, value, identity, due_text, code, text in zip(
        ends, ends[1:], *map(_list, columns), strict=False
    ):
        own = inputs[start:end]
        own.append((ID_HEADER, identity))
        if code is None:
            own.append((DELIVER_AT_HEADER, due_text))
        else:
            own += [(ERROR_HEADER, code.encode()), (ERROR_TEXT_HEADER, text.encode())]
        yield due, topic, partition, key, value, own


def _list(column: pa.Array) -> list[Any]:
    # Four times as fast as `to_pylist`, which makes an Arrow scalar of each value first.
    return list(column.to_numpy(zero_copy_only=False).tolist())
