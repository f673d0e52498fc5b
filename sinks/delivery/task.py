"""Delivery as Spark runs it: a function for `mapInArrow` that hands each shard's ordered messages to its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sinks.delivery.shard_delivery import deliver
from sinks.delivery.transactional_writer import DeliveryPlan
from state.chunk_merge import merge
from state.message import Key, decode_chunk

# What a task takes: the chunks of one shard in order of their first message, those without a key first. A range
# cuts a chunk to the messages due in [from_ms, until_ms); without one it is delivered whole.
DUE_TYPES = {
    "deliver_at_ms": "long",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "from_ms": "long",
    "until_ms": "long",
    "chunk": "binary",
}
REPORT_SCHEMA = "shard int, delivered long, writer string"
_REPORT = pa.schema([("shard", pa.int32()), ("delivered", pa.int64()), ("writer", pa.string())])

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def deliver_chunks(plan: DeliveryPlan, shard: int) -> ArrowFunction:
    """Deliver rows of `DUE_TYPES`, all of `shard`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        delivered, writer = deliver(plan, shard, merge(_chunks(first, batches)), attempt)
        yield pa.RecordBatch.from_arrays([[shard], [delivered], [writer]], schema=_REPORT)

    return run


def _chunks(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[tuple[Key | None, pa.Table]]:
    for batch in chain([first], rest):
        columns = (batch.column(name) for name in DUE_TYPES)
        for *key, from_ms, until_ms, chunk in zip(*(column.to_pylist() for column in columns), strict=True):
            messages = decode_chunk(chunk)
            if from_ms is not None:
                dues = messages.column("deliver_at_ms").to_numpy()
                start, end = np.searchsorted(dues, [from_ms, until_ms]).tolist()
                messages = messages.slice(start, end - start)
            yield (None if key[0] is None else tuple(key)), messages
