"""Sealing the messages that a checkpoint leaves behind: chunks in any order become the segments of one bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from state.buckets.segments import cut
from state.buckets.table_rows import ArrowFunction, segment_rows
from state.checkpoint.batch_settings import BatchSettings
from state.message import decode_chunk, encode_chunk
from state.order import in_order
from state.shards import by_shard

# The input of the task that seals a shard.
LEFT_SCHEMA = pa.schema([("shard", pa.int32()), ("count", pa.int64()), ("chunk", pa.binary())])


def left_rows(messages: pa.Table, shards: int) -> Iterator[pa.RecordBatch]:
    """Yield `messages` as rows of `LEFT_SCHEMA`, one for each of the `shards` shards that has messages."""
    for shard, own in by_shard(messages, shards):
        row = {"shard": shard, "count": own.num_rows, "chunk": encode_chunk(own)}
        yield pa.RecordBatch.from_pylist([row], schema=LEFT_SCHEMA)


def left_in_state(shards: int) -> ArrowFunction:
    """Return the `mapInArrow` function that turns mutable buckets (column `bucket`) into rows of `LEFT_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in batch.column("bucket"):
                yield from left_rows(decode_chunk(bucket.as_py()), shards)

    return run


def resealed(bucket: int, batch_settings: BatchSettings) -> ArrowFunction:
    """Return the `mapInArrow` function that seals rows of `LEFT_SCHEMA` into rows of `table_rows.STORED_SCHEMA`.

    All rows of a shard must go to one task, which holds them in memory.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left: dict[int, list[pa.Table]] = {}
        for batch in batches:
            for shard, chunk in zip(batch.column("shard").to_pylist(), batch.column("chunk"), strict=True):
                left.setdefault(shard, []).append(decode_chunk(chunk.as_py()))
        for shard in sorted(left):
            sealed = in_order(pa.concat_tables(left[shard]).combine_chunks())
            for segment, messages in cut(sealed, bucket, shard, batch_settings):
                yield from segment_rows(segment, messages, batch_settings.index_precision_bits)

    return run
