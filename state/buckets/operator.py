"""Adapts the mutable bucket to Spark's `applyInPandasWithState`. Makes no decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import pyarrow as pa

from state.buckets.mutable import BucketAdvance, advance, empty_bucket
from state.buckets.segments import cut
from state.checkpoint.batch_settings import BatchSettings
from state.message import decode_chunk, encode_chunk, split_by_bytes

# One row of a batch's output: a chunk of due messages, a sealed segment, or a summary of what a shard keeps.
SHARD_OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("cutoff_ms", pa.int64()),
        pa.field("bucket", pa.int64()),
        pa.field("segment", pa.int32()),
        pa.field("part", pa.string()),
        pa.field("min_deliver_at_ms", pa.int64()),
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("chunk", pa.binary()),
    ]
)
# A shard's state: its mutable bucket, as one chunk.
STATE_SCHEMA = pa.schema([pa.field("bucket", pa.binary())])
DUE, SEALED, KEPT = "due", "sealed", "kept"

# Rows are copied whole between the JVM and Python, so a row must not grow with the batch.
_DUE_CHUNK_BYTES = 16 * 1024 * 1024

StateFunction = Callable[[Any, Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def update_shard(settings_now: Callable[[], tuple[int, BatchSettings]]) -> StateFunction:
    """Return the state function. On the executor, `settings_now` returns the running batch's id and settings."""

    def update(key: tuple[int], arrivals: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        batch_id, batch_settings = settings_now()
        shard = batch_settings.shard_keys.index(key[0])
        cutoff_ms = max(int(state.getCurrentWatermarkMs()), batch_settings.first_cutoff_ms)
        chunks = [decode_chunk(bytes(chunk)) for frame in arrivals for chunk in frame["chunk"]]
        waiting = decode_chunk(bytes(state.get[0])) if state.exists else empty_bucket()
        result = advance(waiting, chunks, cutoff_ms, batch_settings)
        if result.kept.num_rows:
            state.update((encode_chunk(result.kept),))
            # Spark refuses a timeout of 0, but a message due at 0 waits while the first cutoff is 0.
            state.setTimeoutTimestamp(max(1, result.next_due_ms or 0))
        elif state.exists:
            state.remove()
        rows = list(_rows(result, batch_settings.first_bucket + batch_id, shard, cutoff_ms, batch_settings))
        yield pd.DataFrame(rows, columns=SHARD_OUTPUT_SCHEMA.names).astype({"chunk": object})

    return update


def _rows(
    result: BucketAdvance, bucket: int, shard: int, cutoff_ms: int, batch_settings: BatchSettings
) -> Iterable[dict[str, Any]]:
    """Yield the rows of `SHARD_OUTPUT_SCHEMA` for one advance."""
    base = {"shard": shard, "cutoff_ms": cutoff_ms, "bucket": bucket, "segment": 0, "part": ""}
    if result.due.num_rows:
        for piece in split_by_bytes(result.due, _DUE_CHUNK_BYTES):
            yield {**base, "kind": DUE, **_bounds(piece), "chunk": encode_chunk(piece)}
    for segment, messages in cut(result.sealed, bucket, shard, batch_settings):
        yield {**base, **asdict(segment), "kind": SEALED, "chunk": encode_chunk(messages)}
    yield {**base, "kind": KEPT, **_bounds(result.kept), "chunk": b""}


def _bounds(messages: pa.Table) -> dict[str, int]:
    """Return the bounds, count and bytes of `messages`; both bounds of an empty table are -1."""
    due = messages.column("deliver_at_ms")
    first, last = (due[0].as_py(), due[-1].as_py()) if messages.num_rows else (-1, -1)
    return {
        "min_deliver_at_ms": first,
        "max_deliver_at_ms": last,
        "count": messages.num_rows,
        "bytes": messages.nbytes,
    }
