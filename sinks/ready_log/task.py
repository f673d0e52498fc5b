"""Staging as Spark runs it: a function for `mapInArrow` that gives messages to the writers of their shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sinks.ready_log.writer import StagingPlan
from sinks.ready_log.writer_host import Sent, stage_by_host
from state.answers import ANSWER_SCHEMA, answered
from state.cancel import without_cancelled
from state.chunk_merge import merge
from state.kinds import repeats
from state.message import decode_chunk
from state.message_ids import Ids
from state.order import OrderKey, keys_of

REPORT_SCHEMA = pa.schema([("shard", pa.int32()), ("staged", pa.int64()), ("writer", pa.string())])

# How much a task sends to the writer host before it waits for answers.
_SENT_BYTES = 16 * 1024 * 1024

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Cancels:
    """The decisions of a batch about cancels: the messages that it does not stage, and its answers.

    - `cancelled`: messages that the prefetch window has, and that are cancelled since
    - `left_out`: messages that came with the batch, and are not staged; a request may have the same id, and is
    - `answers`: a table of `state.answers.ANSWER_SCHEMA`
    """

    cancelled: Ids = field(default_factory=dict)
    left_out: Ids = field(default_factory=dict)
    answers: pa.Table = field(default_factory=ANSWER_SCHEMA.empty_table)


_NO_CANCELS = Cancels()


def stage_chunks(plan: StagingPlan, cancels: Cancels = _NO_CANCELS) -> ArrowFunction:
    """Return the `mapInArrow` function that stages chunks, and returns a row of `REPORT_SCHEMA` for each shard.

    The input has a row for each chunk, with the columns `shard`, `chunk`, the order key of its first message (`ORDER`),
    and two due times, `from_ms` and `until_ms`. These limit the chunk to the messages due in [from_ms, until_ms); if
    they are null, the whole chunk is staged, with the answers to the requests in it. The rows of a shard are all in one
    task, and in order of their keys.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        sent: dict[int, Sent] = {}
        try:
            for shard, rows in groupby(_chunks(batches, cancels), key=itemgetter(0)):
                messages = merge((key, messages) for _, key, messages in rows)
                sent[shard] = stage_by_host(plan, shard, messages, attempt)
                # A transaction mostly waits for the brokers, so the transactions of a task wait at the same time.
                if sum(each.nbytes for each in sent.values()) >= _SENT_BYTES:
                    yield _answers(sent)
            yield _answers(sent)
        except Exception:
            # The next attempt of the task would meet the transactions of the other shards.
            _wait_for_rest(sent)
            raise

    return run


def _answers(sent: dict[int, Sent]) -> pa.RecordBatch:
    """Return a row of `REPORT_SCHEMA` for each shard once the host has answered, and take it out of `sent`.

    Raises the first error, with the answers after it left in `sent`.
    """
    rows: list[dict[str, Any]] = []
    while sent:
        shard = next(iter(sent))
        count, writer = sent.pop(shard).answer()
        rows.append({"shard": shard, "staged": count, "writer": writer})
    return pa.RecordBatch.from_pylist(rows, schema=REPORT_SCHEMA)


def _wait_for_rest(sent: dict[int, Sent]) -> None:
    while sent:
        _, each = sent.popitem()
        with suppress(Exception):
            each.answer()


def _chunks(batches: Iterable[pa.RecordBatch], cancels: Cancels) -> Iterator[tuple[int, OrderKey, pa.Table]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("shard", "from_ms", "until_ms", "chunk"))
        for key, shard, from_ms, until_ms, chunk in zip(keys_of(batch), *columns, strict=True):
            messages = staged_of(decode_chunk(chunk), from_ms, until_ms, cancels)
            # Their occurrences are in chunks of their own.
            if (repeating := repeats(messages)).any():
                messages = messages.filter(pa.array(~repeating))
            if from_ms is None:
                messages = answered(messages, cancels.answers)
            yield shard, key, messages


def staged_of(messages: pa.Table, from_ms: int | None, until_ms: int | None, cancels: Cancels) -> pa.Table:
    """Return the `messages` of a chunk that a batch stages: the ones due in [from_ms, until_ms), or all.

    Messages that `cancels` takes out are omitted.
    """
    if from_ms is None or until_ms is None:
        return without_cancelled(messages, cancels.left_out)
    dues = messages.column("deliver_at_ms").to_numpy()
    start, end = np.searchsorted(dues, [from_ms, until_ms]).tolist()
    return without_cancelled(messages.slice(start, end - start), cancels.cancelled)
