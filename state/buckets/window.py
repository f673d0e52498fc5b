"""The prefetch window's messages: selected from stored chunks, put in order, and chunked again by shard.

A batch then reads few chunks, which were sorted long before they are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from state.buckets.cancelled_filter import CancelledFilter, between
from state.buckets.table_rows import ArrowFunction, split
from state.chunk_merge import merge
from state.kinds import repeats
from state.message import decode_chunk, encode_chunk
from state.order import OrderKey, key_of, keys_of
from state.shards import by_shard

# The longest span of a chunk of the window. A batch reads a chunk if it may have a due message. Where few messages are
# due, a stored chunk can span days. A chunk costs kilobytes, so a long load has longer spans.
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
        # How many of the messages repeat.
        pa.field("repeats", pa.int64()),
        pa.field("chunk", pa.binary()),
    ]
)


def window_rows(start_ms: int, end_ms: int, shards: int, cancelled: CancelledFilter | None = None) -> ArrowFunction:
    """Return the `mapInArrow` function that yields the messages due in [start_ms, end_ms) as `WINDOW_SCHEMA`.

    The input is the same as for `stored_messages`. `shards` is the present number of shards. A bucket may have been
    sealed with another number.
    """

    span_ms = min(max(_SPAN_MS, (end_ms - start_ms) * shards // _CHUNKS_OF_A_LOAD), _MOST_SPAN_MS)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for messages in stored_messages(batches, start_ms, end_ms, cancelled):
            for shard, own in by_shard(messages, shards):
                for piece in chain.from_iterable(map(split, _by_span(own, span_ms))):
                    last = piece.column("deliver_at_ms")[-1].as_py()
                    row = {"shard": shard, "max_deliver_at_ms": last, "count": piece.num_rows}
                    row["repeats"] = int(repeats(piece).sum())
                    row |= {**key_of(piece)._asdict(), "chunk": encode_chunk(piece)}
                    yield pa.RecordBatch.from_pylist([row], schema=WINDOW_SCHEMA)

    return run


def _by_span(messages: pa.Table, span_ms: int) -> Iterator[pa.Table]:
    """Cut `messages`, which are in delivery order, where a new span of due time begins."""
    spans = messages.column("deliver_at_ms").to_numpy() // span_ms
    bounds = [0, *(np.flatnonzero(np.diff(spans)) + 1).tolist(), len(spans)]
    return (messages.slice(start, end - start) for start, end in pairwise(bounds))


def stored_messages(
    batches: Iterable[pa.RecordBatch], start_ms: int, end_ms: int, cancelled: CancelledFilter | None
) -> Iterator[pa.Table]:
    """Yield the messages due in [start_ms, end_ms) of stored chunks, in delivery order.

    The input is chunks in order of their keys (deliver_at_ms, topic, partition, offset). With `cancelled`, chunks of
    ids are among them (`CancelledFilter.left`).
    """
    if cancelled is None:
        return merge(_keyed_chunks(batches, start_ms, end_ms))
    return cancelled.left(batches, start_ms, end_ms)


def _keyed_chunks(batches: Iterable[pa.RecordBatch], start_ms: int, end_ms: int) -> Iterator[tuple[OrderKey, pa.Table]]:
    for batch in batches:
        for key, chunk in zip(keys_of(batch), batch.column("chunk"), strict=True):
            yield key, between(decode_chunk(chunk.as_py()), start_ms, end_ms)
