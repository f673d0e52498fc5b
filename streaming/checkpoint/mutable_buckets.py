"""The mutable buckets after one committed batch, from Spark's state in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pyspark.sql import SparkSession

from state.checkpoint.batch_settings import BatchSettings
from state.due_spans import due_runs
from state.message import decode_chunk
from streaming.monitor.estimate import MutableDues


@dataclass(frozen=True)
class MutableBucket:
    """The mutable bucket of one shard: due times of its messages (epoch ms, ascending) and bytes in memory."""

    shard: int
    dues_ms: np.ndarray
    bytes: int


def mutable_buckets(
    spark: SparkSession, checkpoint: str, batch_id: int, batch_settings: BatchSettings
) -> list[MutableBucket]:
    """Read the state after `batch_id` from Spark's state data source, one shard at a time."""
    state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint)
    rows = state.select("key.shard_key", "value.groupState.bucket").toLocalIterator()
    buckets = []
    for row in rows:
        messages = decode_chunk(bytes(row["bucket"]))
        dues_ms = np.sort(messages.column("deliver_at_ms").to_numpy())
        buckets.append(MutableBucket(batch_settings.shard_keys.index(row["shard_key"]), dues_ms, messages.nbytes))
    return buckets


def dues_by_shard(buckets: Iterable[MutableBucket], now_ms: int) -> dict[int, MutableDues]:
    """Return when the messages of mutable buckets are due, by shard, counted by spans from `now_ms` (epoch ms)."""
    return {each.shard: MutableDues(due_runs(each.dues_ms, now_ms), each.bytes) for each in buckets}
