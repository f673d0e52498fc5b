"""The prefetch window's messages: selected from stored chunks, put in order, and chunked again by shard.

A batch then reads few chunks, which were sorted long before they are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from state.buckets.cancelled import NONE_CANCELLED, CancelledIds
from state.buckets.table_rows import ArrowFunction, split
from state.cancel import without_named
from state.chunk_merge import merge
from state.message import decode_chunk, encode_chunk
from state.order import OrderKey, key_of, keys_of
from state.shards import by_shard

# How long a chunk of the window spans at most. A batch reads a chunk if it may hold a message that is due, and where
# few messages are due, a chunk of stored ones can span days. A chunk costs kilobytes, so a long load has longer spans.
_SPAN_MS, _MOST_SPAN_MS = 60_000, 3_600_000
_CHUNKS_OF_A_LOAD = 2_048

WINDOW_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("chunk", pa.binary()),
    ]
)


def window_rows(
    start_ms: int, end_ms: int, shards: int, cancelled: CancelledIds = NONE_CANCELLED, results: str = ""
) -> ArrowFunction:
    """Return the `mapInArrow` function that yields the messages due in [start_ms, end_ms) as `WINDOW_SCHEMA`.

    The input is stored chunks (deliver_at_ms, topic, partition, offset, chunk), sorted by these keys, with their
    buckets. `shards` is the present number of shards; a bucket may have been sealed with another number. `cancelled`
    messages are left out, and no asks, which go to the topic `results`.
    """

    span_ms = min(max(_SPAN_MS, (end_ms - start_ms) * shards // _CHUNKS_OF_A_LOAD), _MOST_SPAN_MS)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for messages in merge(keyed_chunks(batches, start_ms, end_ms, cancelled, results)):
            for shard, own in by_shard(messages, shards):
                for piece in chain.from_iterable(map(split, _by_span(own, span_ms))):
                    last = piece.column("deliver_at_ms")[-1].as_py()
                    row = {"shard": shard, "max_deliver_at_ms": last, "count": piece.num_rows}
                    row |= {**key_of(piece)._asdict(), "chunk": encode_chunk(piece)}
                    yield pa.RecordBatch.from_pylist([row], schema=WINDOW_SCHEMA)

    return run


def _by_span(messages: pa.Table, span_ms: int) -> Iterator[pa.Table]:
    """Cut `messages`, which are in delivery order, where a new span of due time begins."""
    spans = messages.column("deliver_at_ms").to_numpy() // span_ms
    bounds = [0, *(np.flatnonzero(np.diff(spans)) + 1).tolist(), len(spans)]
    return (messages.slice(start, end - start) for start, end in pairwise(bounds))


def keyed_chunks(
    batches: Iterable[pa.RecordBatch], start_ms: int, end_ms: int, cancelled: CancelledIds, results: str
) -> Iterator[tuple[OrderKey, pa.Table]]:
    """Yield each stored chunk's messages due in [start_ms, end_ms), with the order key of the chunk's first message.

    `cancelled` messages are left out, and no asks, which go to the topic `results`.
    """
    for batch in batches:
        buckets = batch.column("bucket").to_pylist()
        for key, bucket, chunk in zip(keys_of(batch), buckets, batch.column("chunk"), strict=True):
            messages = between(decode_chunk(chunk.as_py()), start_ms, end_ms)
            yield key, without_named(messages, cancelled.among(messages, bucket), results)


def between(messages: pa.Table, start_ms: int, end_ms: int) -> pa.Table:
    """Return those of `messages`, which are in delivery order, that are due in [start_ms, end_ms)."""
    dues = messages.column("deliver_at_ms").to_numpy()
    start, end = np.searchsorted(dues, [start_ms, end_ms])
    return messages.slice(int(start), int(end - start))
