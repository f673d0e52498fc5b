"""Sealing the messages that a checkpoint leaves behind: chunks in any order become the segments of one bucket.

Chunks of few messages span little of the time in which messages are due. Spark sorts them, on disk if there are many,
and merged in that order they overlap little: so a shard's messages need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, groupby
from operator import itemgetter

import pyarrow as pa

from state.buckets.parts import sealed_part
from state.buckets.segments import SegmentCutter
from state.buckets.table_rows import CHUNK_BYTES, ArrowFunction, segment_rows
from state.checkpoint.batch_settings import BatchSettings
from state.chunk_merge import merge
from state.message import decode_chunk, encode_chunk, split_by_bytes
from state.order import OrderKey, in_order, key_of, keys_of
from state.shards import by_shard

# A hundredth of what Spark passes on at once: of what is read in so many pieces, each is in memory by a chunk.
_CHUNK_MESSAGES = 100

# The input of the task that seals a shard: chunks in delivery order, each with the order key of its first message.
LEFT_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("deliver_at_ms", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("count", pa.int64()),
        ("chunk", pa.binary()),
    ]
)


def left_rows(messages: pa.Table, shards: int) -> Iterator[pa.RecordBatch]:
    """Yield `messages`, in any order, as rows of `LEFT_SCHEMA` for the `shards` shards."""
    for shard, own in by_shard(messages, shards):
        ordered = in_order(own)
        for at in range(0, ordered.num_rows, _CHUNK_MESSAGES):
            for piece in split_by_bytes(ordered.slice(at, _CHUNK_MESSAGES), CHUNK_BYTES):
                row = {"shard": shard, **key_of(piece)._asdict(), "count": piece.num_rows, "chunk": encode_chunk(piece)}
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

    All rows of a shard must go to one task. A task gets its rows by shard, and the rows of a shard in order of keys.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for shard, rows in groupby(_keyed_chunks(batches), key=itemgetter(0)):
            cutter = SegmentCutter(bucket, shard, sealed_part(bucket), count(), batch_settings)
            chunks = ((key, messages) for _, key, messages in rows)
            for segment, messages in cutter.cut(merge(chunks)):
                yield from segment_rows(segment, messages, batch_settings.index_precision_bits)

    return run


def _keyed_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, OrderKey, pa.Table]]:
    for batch in batches:
        shards = batch.column("shard").to_pylist()
        for shard, key, chunk in zip(shards, keys_of(batch), batch.column("chunk"), strict=True):
            yield shard, key, decode_chunk(chunk.as_py())
