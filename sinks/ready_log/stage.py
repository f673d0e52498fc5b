"""Staging a shard's due messages with its writer: in order, after the committed ones, through outages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable, CheckpointMismatch, DeliveryFailed
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.lease import refuse_others
from sinks.internal_topics.progress import read_progress
from sinks.ready_log.chunk import MOST_DELIVERIES, with_few_deliveries
from sinks.ready_log.writer import FencedBySibling, MostOfTopics, ReadyLogWriter, StagingPlan
from state.checkpoint.progress import Progress, committed_messages, occurrences_from
from state.kinds import DEAD_LETTER, kinds_of
from state.message import split_by_bytes
from state.order import OrderKey, in_order, key_of, up_to

log = logging.getLogger(__name__)

# The size of a decoded chunk: a release process opens a chunk, and takes it in, at once.
_CHUNK_BYTES = 512 * 1024
_CHUNK_MESSAGES = 2_000
# A release process keeps a chunk open as long as one of its messages waits. So one that spans more due time than this
# is cut into equal parts, but not into such small ones that they cost more than their messages.
_CHUNK_SPAN_MS = 5_000
_LEAST_CUT_BYTES = 32 * 1024
_NO_LIMITS: MostOfTopics = MappingProxyType({})
_LOOK_EVERY_S = 0.2
# An attempt waits this part of the transaction timeout for another attempt that commits nothing.
_PATIENCE = 4

# Opening a writer costs tens of milliseconds, and the process lives on (`sinks.ready_log.writer_host`).
_open_writers: dict[tuple[str, int], ReadyLogWriter] = {}


def stage(plan: StagingPlan, shard: int, messages: Iterator[pa.Table], attempt: int = 0) -> tuple[int, str]:
    """Stage a shard's messages, in order, and return how many this call committed, and the writer's id.

    1. Open a writer, unless this process has the last one.
    2. Skip the messages that a killed or failed attempt committed.
    3. Write the rest, in one transaction if it is not too much.

    The call waits for brokers that do not answer. Another attempt of its task may have fenced its writer, such as after
    the driver took its executor for lost. The call then waits until that attempt has staged the same messages. Raises
    DeliveryFailed if a transaction cannot be completed, BrokerUnreachable after `plan.outage_limit_ms`, TopicMissing,
    TopicMismatch, ApplicationHeld. Nothing of the transaction is visible after an error.
    """
    key = (plan.application_id, shard)
    _close_moved(plan)
    # 1. Open a writer.
    writer = _open_writers.pop(key, None)
    if writer is None or writer.id != plan.last_writers.get(shard):
        writer = _opened(plan, shard, _retry(plan, shard))
    # 2. Skip.
    start = committed_messages(writer.progress, plan.batch)
    rest = _not_committed(plan, shard, writer.progress, messages) if start else messages
    # 3. Write.
    end, own = start, 0
    for tables in transactions(rest, plan.transaction_bytes):
        count = sum(table.num_rows for table in tables)
        total = count + (0 if writer.progress is None else writer.progress.staged)
        below_ms, from_ms = plan.occurrences_below_ms.get(shard), occurrences_from(writer.progress, plan.batch)
        last = key_of(tables[-1], -1)
        progress = Progress(plan.batch, end + count, last, total, below_ms, plan.in_table, from_ms)
        try:
            writer = _written(plan, writer, tables, progress, end, attempt)
            own += count
        except FencedBySibling:
            _wait_for_sibling(plan, shard, progress.messages)
        end += count
    if not writer.is_fenced:
        _open_writers[key] = writer
    return own, writer.id


def _close_moved(plan: StagingPlan) -> None:
    """Close the writers of shards that another process has staged messages for since then: they are fenced."""
    for key, writer in list(_open_writers.items()):
        moved = writer.id != plan.last_writers.get(writer.shard)
        # The driver does not know yet which writers this batch has opened.
        if key[0] == plan.application_id and moved and writer.opened_for.batch_id < plan.batch.batch_id:
            writer.close()
            # Keep a writer that the thread of that shard has opened in the meantime.
            if _open_writers.get(key) is writer:
                _open_writers.pop(key, None)


def transactions(messages: Iterator[pa.Table], most_bytes: int) -> Iterator[list[pa.Table]]:
    """Yield the messages of each transaction, in order: up to `most_bytes`, or a single larger message."""
    tables: list[pa.Table] = []
    nbytes = 0
    for table in messages:
        for piece in split_by_bytes(table, most_bytes) if table.num_rows else ():
            if tables and nbytes + piece.nbytes > most_bytes:
                yield tables
                tables, nbytes = [], 0
            tables.append(piece)
            nbytes += piece.nbytes
    if tables:
        yield tables


def _not_committed(
    plan: StagingPlan, shard: int, done: Progress | None, messages: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the messages after the committed ones.

    Raises CheckpointMismatch if the replay has a different number of them, unless input loss is tolerated.
    """
    assert done is not None
    assert done.last is not None

    def check(skipped: int) -> None:
        if skipped != done.messages and not plan.tolerates_input_loss:
            raise CheckpointMismatch(
                f"shard {shard}, batch {plan.batch.batch_id}: {done.messages} messages are staged, but its "
                f"replay stages {skipped} up to the last of them: the records of the batch have changed. Make a new "
                "checkpoint with `delayline rebuild --discard-checkpoint`"
            )

    return behind(messages, done.last, check)


def behind(messages: Iterator[pa.Table], last: OrderKey, skipped: Callable[[int], None]) -> Iterator[pa.Table]:
    """Yield the messages after `last`, and call `skipped` with the number of the others.

    The others are skipped by order key, not by number: a replayed batch lacks input records that were deleted since.
    """
    count = 0
    for table in messages:
        known = int(up_to(table, last).sum()) if table.num_rows else 0
        count += known
        if known < table.num_rows:
            skipped(count)
            yield table.slice(known)
            yield from messages
            return
    skipped(count)


def _written(
    plan: StagingPlan, writer: ReadyLogWriter, tables: list[pa.Table], progress: Progress, start: int, attempt: int
) -> ReadyLogWriter:
    """Commit the messages after position `start` of the batch, unless they are committed. Return the last writer.

    A spent writer is replaced.
    """
    retry = _retry(plan, writer.shard)
    chunks = [
        chunk
        for table in tables
        for chunk in ready_chunks(table, plan.clock_ms, plan.most_deliveries, plan.most_of_topics)
    ]
    while True:
        try:
            if not writer.is_spent:
                writer.write(chunks, progress, attempt)
                return writer
        except FencedBySibling:
            writer.close()
            raise
        except KafkaException as problem:
            writer.close()
            retry.wait(problem)
        except BaseException:
            writer.close()
            raise
        writer = _opened(plan, writer.shard, retry)
        done = committed_messages(writer.progress, plan.batch)
        if done == progress.messages:
            return writer
        if done != start:
            raise DeliveryFailed(f"{_who(plan, writer.shard)}: another writer has staged {done} messages meanwhile")


def _wait_for_sibling(plan: StagingPlan, shard: int, messages: int) -> None:
    """Wait until another attempt of the task has staged `messages` messages of the batch.

    A new writer would abort the transaction of the other attempt, which would do the same in turn. Raises
    ApplicationHeld if the other writer belongs to another job. Raises DeliveryFailed if nothing is committed for much
    longer than a transaction takes: then no attempt is making progress.
    """
    retry = _retry(plan, shard)
    done, limit_s = -1, plan.transaction_timeout_ms / _PATIENCE / 1000
    seen_s = time.monotonic()
    log.info("%s: another attempt of this task has taken over; waiting for it", _who(plan, shard))
    while True:
        try:
            refuse_others(plan.options, plan.lease_topic, plan.fencing_token)
            now_done = committed_messages(read_progress(plan.options, plan.progress_topic, shard), plan.batch)
        except (KafkaException, BrokerUnreachable) as problem:
            retry.wait(problem)
            seen_s = time.monotonic()
            continue
        if now_done >= messages:
            return
        if now_done > done:
            done, seen_s = now_done, time.monotonic()
        elif time.monotonic() > seen_s + limit_s:
            raise DeliveryFailed(
                f"{_who(plan, shard)}: another writer has taken over, and has not committed anything for {limit_s:g} s"
            )
        time.sleep(_LOOK_EVERY_S)


def most_of_topics(settings: Settings) -> MostOfTopics:
    """Return how many messages of each limited output topic, or of all (None), a chunk may have: a second's rate.

    The late messages of a chunk go out together, whatever the rate. So a larger chunk would be a burst, and hold up all
    other messages of its shard afterwards.
    """
    rates: list[tuple[str | None, float]] = [*settings.rates.by_topic.items()]
    if settings.release.messages_per_second:
        rates.append((None, settings.release.messages_per_second))
    return {topic: max(1, math.ceil(rate / settings.bucket.shards)) for topic, rate in rates}


def ready_chunks(
    messages: pa.Table,
    clock_ms: int,
    most_deliveries: int = MOST_DELIVERIES,
    most_of_topics: MostOfTopics = _NO_LIMITS,
) -> Iterator[pa.Table]:
    """Cut messages in delivery order into chunks.

    Dead letters are due at `clock_ms` (epoch ms) or before, since their requested time is unknown, or is refused.
    A chunk has at most `most_deliveries` requests for messages to be due at once, and the `most_of_topics`.
    """
    is_dead = np.asarray(kinds_of(messages) == DEAD_LETTER)
    if is_dead.any():
        dead = messages.filter(pa.array(is_dead))
        dues = pc.min_element_wise(dead.column("deliver_at_ms"), pa.scalar(clock_ms))
        dead = in_order(dead.set_column(dead.schema.get_field_index("deliver_at_ms"), "deliver_at_ms", dues))
        yield from _cut(dead.combine_chunks(), most_deliveries, most_of_topics)
        messages = messages.filter(pa.array(~is_dead))
    yield from _cut(messages, most_deliveries, most_of_topics)


def _cut(messages: pa.Table, most_deliveries: int, most_of_topics: MostOfTopics) -> Iterator[pa.Table]:
    for at in range(0, messages.num_rows, _CHUNK_MESSAGES):
        for piece in split_by_bytes(messages.slice(at, _CHUNK_MESSAGES), _CHUNK_BYTES):
            span_ms = key_of(piece, -1).deliver_at_ms - key_of(piece).deliver_at_ms
            count = min(span_ms // _CHUNK_SPAN_MS + 1, max(1, piece.nbytes // _LEAST_CUT_BYTES))
            rows = -(-piece.num_rows // count)
            for start in range(0, piece.num_rows, rows):
                for part in _limited(piece.slice(start, rows), most_of_topics):
                    yield from with_few_deliveries(part, most_deliveries)


def _limited(messages: pa.Table, most_of_topics: MostOfTopics) -> Iterator[pa.Table]:
    bounds = {0, messages.num_rows}
    for topic, most in most_of_topics.items():
        is_of = np.ones(messages.num_rows, dtype=bool)
        if topic is not None:
            is_of = np.asarray(pc.equal(messages.column("output_topic"), topic))
        bounds.update(np.flatnonzero(is_of)[most::most].tolist())
    for start, end in pairwise(sorted(bounds)):
        yield messages.slice(start, end - start)


def _opened(plan: StagingPlan, shard: int, retry: BrokerRetry) -> ReadyLogWriter:
    while True:
        try:
            return ReadyLogWriter(plan, shard)
        except (KafkaException, BrokerUnreachable) as problem:
            retry.wait(problem)


def _retry(plan: StagingPlan, shard: int) -> BrokerRetry:
    return BrokerRetry(_who(plan, shard), plan.outage_limit_ms)


def _who(plan: StagingPlan, shard: int) -> str:
    return f"shard {shard}, batch {plan.batch.batch_id}"
