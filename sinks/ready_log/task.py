"""The hand-over as Spark runs it: a function for `mapInArrow` that gives messages to the writers of their shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sinks.ready_log.writer import HandOverPlan
from sinks.ready_log.writer_host import hand_over_by_host
from state.chunk_merge import merge
from state.message import decode_chunk
from state.order import OrderKey, keys_of

# The input of a task: the chunks of a shard in order of their first message, those without a key first. A range
# limits a chunk to the messages due in [from_ms, until_ms); without a range, the whole chunk is handed over.
DUE_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("from_ms", pa.int64()),
        pa.field("until_ms", pa.int64()),
        pa.field("chunk", pa.binary()),
    ]
)
REPORT_SCHEMA = pa.schema([("shard", pa.int32()), ("handed_over", pa.int64()), ("writer", pa.string())])

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def hand_over_chunks(plan: HandOverPlan) -> ArrowFunction:
    """Hand over rows of `DUE_SCHEMA`. Those of a shard are all in one task, and consecutive."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        for shard, rows in groupby(_chunks(batches), key=itemgetter(0)):
            messages = merge((key, messages) for _, key, messages in rows)
            count, writer = hand_over_by_host(plan, shard, messages, attempt)
            yield pa.RecordBatch.from_arrays([[shard], [count], [writer]], schema=REPORT_SCHEMA)

    return run


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, OrderKey | None, pa.Table]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("shard", "from_ms", "until_ms", "chunk"))
        for key, shard, from_ms, until_ms, chunk in zip(keys_of(batch), *columns, strict=True):
            messages = decode_chunk(chunk)
            if from_ms is not None:
                dues = messages.column("deliver_at_ms").to_numpy()
                start, end = np.searchsorted(dues, [from_ms, until_ms]).tolist()
                messages = messages.slice(start, end - start)
            yield shard, (None if key.deliver_at_ms is None else key), messages
