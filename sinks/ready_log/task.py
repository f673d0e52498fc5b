"""The hand-over as Spark runs it: a function for `mapInArrow` that gives a shard's ordered messages to its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sinks.ready_log.hand_over import hand_over
from sinks.ready_log.writer import HandOverPlan
from state.chunk_merge import merge
from state.message import decode_chunk
from state.order import OrderKey, keys_of

# The input of a task: the chunks of one shard in order of their first message, those without a key first. A range
# limits a chunk to the messages due in [from_ms, until_ms); without a range, the whole chunk is handed over.
DUE_SCHEMA = pa.schema(
    [
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


def hand_over_chunks(plan: HandOverPlan, shard: int) -> ArrowFunction:
    """Hand over rows of `DUE_SCHEMA`, all of `shard`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rest = iter(batches)
        first = next((batch for batch in rest if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        count, writer = hand_over(plan, shard, merge(_chunks(first, rest)), attempt)
        yield pa.RecordBatch.from_arrays([[shard], [count], [writer]], schema=REPORT_SCHEMA)

    return run


def _chunks(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[tuple[OrderKey | None, pa.Table]]:
    for batch in chain([first], rest):
        bounds = (batch.column(name).to_pylist() for name in ("from_ms", "until_ms", "chunk"))
        for key, from_ms, until_ms, chunk in zip(keys_of(batch), *bounds, strict=True):
            messages = decode_chunk(chunk)
            if from_ms is not None:
                dues = messages.column("deliver_at_ms").to_numpy()
                start, end = np.searchsorted(dues, [from_ms, until_ms]).tolist()
                messages = messages.slice(start, end - start)
            yield (None if key.deliver_at_ms is None else key), messages
