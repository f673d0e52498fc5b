"""Delivery as Spark runs it: functions for `mapInArrow` that hand each shard's ordered messages to its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import pyarrow as pa
from pyspark import TaskContext

from conf.message import MESSAGE_SCHEMA, decode_chunk
from sinks.transactional_writer import DeliveryPlan, deliver

REPORT_SCHEMA = "shard int, delivered long, writer string"
_REPORT = pa.schema([("shard", pa.int32()), ("delivered", pa.int64()), ("writer", pa.string())])

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def deliver_chunks(plan: DeliveryPlan) -> ArrowFunction:
    """Deliver rows of (shard, chunk), the chunks of a shard in order and side by side."""

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        for batch in batches:
            for shard, chunk in zip(batch.column("shard").to_pylist(), batch.column("chunk"), strict=True):
                yield shard, decode_chunk(chunk.as_py())

    return _delivering(plan, tables)


def deliver_rows(plan: DeliveryPlan) -> ArrowFunction:
    """Deliver rows of `MESSAGE_SCHEMA` and a `shard`, all of one shard and in delivery order."""

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        for batch in batches:
            if batch.num_rows:
                yield batch.column("shard")[0].as_py(), pa.Table.from_batches([batch]).select(MESSAGE_SCHEMA.names)

    return _delivering(plan, tables)


def explode_chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of (shard, chunk) into rows of `MESSAGE_SCHEMA` and their `shard`."""
    for batch in batches:
        for shard, chunk in zip(batch.column("shard").to_pylist(), batch.column("chunk"), strict=True):
            messages = decode_chunk(chunk.as_py())
            shards = pa.repeat(pa.scalar(shard, pa.int32()), messages.num_rows)
            value = messages.schema.get_field_index("value")
            narrow = messages.set_column(value, "value", messages.column("value").cast(pa.binary()))
            yield from narrow.append_column("shard", shards).to_batches(max_chunksize=10_000)


def _delivering(
    plan: DeliveryPlan, tables: Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[int, pa.Table]]]
) -> ArrowFunction:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        for shard, pieces in groupby(tables(batches), key=lambda piece: piece[0]):
            delivered, writer = deliver(plan, shard, (piece for _, piece in pieces), attempt)
            yield pa.RecordBatch.from_arrays([[shard], [delivered], [writer]], schema=_REPORT)

    return run
