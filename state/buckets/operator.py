"""The layer between Spark's `applyInPandasWithState` and the mutable bucket. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import pyarrow as pa

from state.buckets.mutable import BucketStep, empty_bucket, step
from state.buckets.segments import cut
from state.checkpoint.batch_settings import BatchRules
from state.message import decode_chunk, encode_chunk, split_by_bytes

# One row of a batch's outcome: a chunk of due messages, a sealed segment, or what a shard keeps.
HELD_SCHEMA = (
    "kind string, shard int, cutoff_ms long, bucket long, segment int, time_partition string, "
    "min_deliver_at_ms long, max_deliver_at_ms long, count long, bytes long, chunk binary"
)
HELD_COLUMNS = [column.split()[0] for column in HELD_SCHEMA.split(", ")]
STATE_SCHEMA = "bucket binary"
DUE, SEALED, KEPT = "due", "sealed", "kept"

# Rows are copied whole between the JVM and Python, so that one must not grow with the batch.
_DUE_CHUNK_BYTES = 16 * 1024 * 1024

StateFunction = Callable[[tuple[int], Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def hold(rules_now: Callable[[], tuple[int, BatchRules]]) -> StateFunction:
    """Return the state function. `rules_now` gives the running batch's id and its rules, on the executor."""

    def hold_shard(key: tuple[int], arrivals: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        batch_id, rules = rules_now()
        shard = rules.shard_keys.index(key[0])
        cutoff_ms = max(int(state.getCurrentWatermarkMs()), rules.first_cutoff_ms)
        chunks = [decode_chunk(bytes(chunk)) for frame in arrivals for chunk in frame["chunk"]]
        waiting = decode_chunk(bytes(state.get[0])) if state.exists else empty_bucket()
        result = step(waiting, chunks, cutoff_ms, rules)
        if result.kept.num_rows:
            state.update((encode_chunk(result.kept),))
            # A message due at 0 waits while the first cutoff is 0, and Spark takes no timeout of 0.
            state.setTimeoutTimestamp(max(1, result.next_due_ms or 0))
        elif state.exists:
            state.remove()
        rows = list(_rows(result, rules.first_bucket + batch_id, shard, cutoff_ms, rules))
        yield pd.DataFrame(rows, columns=HELD_COLUMNS).astype({"chunk": object})

    return hold_shard


def _rows(result: BucketStep, bucket: int, shard: int, cutoff_ms: int, rules: BatchRules) -> Iterable[dict[str, Any]]:
    """Give the rows of `HELD_SCHEMA` for one step."""
    base = {"shard": shard, "cutoff_ms": cutoff_ms, "bucket": bucket, "segment": 0, "time_partition": ""}
    if result.due.num_rows:
        for piece in split_by_bytes(result.due, _DUE_CHUNK_BYTES):
            yield {**base, "kind": DUE, **_bounds(piece), "chunk": encode_chunk(piece)}
    for segment, messages in cut(result.sealed, bucket, shard, cutoff_ms, rules):
        yield {**base, **asdict(segment), "kind": SEALED, "chunk": encode_chunk(messages)}
    yield {**base, "kind": KEPT, **_bounds(result.kept), "chunk": b""}


def _bounds(messages: pa.Table) -> dict[str, int]:
    """Describe a table that may be empty: then both bounds are -1."""
    due = messages.column("deliver_at_ms")
    first, last = (due[0].as_py(), due[-1].as_py()) if messages.num_rows else (-1, -1)
    return {
        "min_deliver_at_ms": first,
        "max_deliver_at_ms": last,
        "count": messages.num_rows,
        "bytes": messages.nbytes,
    }
