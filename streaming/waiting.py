"""What waits after one committed batch: mutable buckets from Spark's state, sealed ones from their metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.message import decode_chunk
from conf.rules import BatchRules
from sinks.bucket_store import BucketStore
from state.segments import Segment
from state.stored import described_segment

_COUNTED = "bucket long, shard int, segment int, count long, first long"


@dataclass(frozen=True)
class MutableBucket:
    """One shard's messages that are not sealed: their due times (epoch ms, ascending) and bytes in memory."""

    shard: int
    dues_ms: np.ndarray
    bytes: int


class DueHistogram:
    """How many messages are due in each span between `edges_ms`: below the first, ..., from the last on.

    A segment tells no more than its bounds and its count. One that crosses an edge is taken to be spread evenly,
    and makes the histogram an estimate; its sum stays exact.
    """

    def __init__(self, edges_ms: Iterable[int]) -> None:
        self._edges = np.array(sorted(edges_ms), dtype=np.int64)
        self._below = np.zeros(len(self._edges), dtype=np.int64)
        self._total = 0
        self.estimated = False

    @property
    def counts(self) -> list[int]:
        """One count more than there are edges."""
        counts: list[int] = np.diff(self._below, prepend=0, append=self._total).tolist()
        return counts

    def add_instants(self, dues_ms: np.ndarray) -> None:
        """Count messages of which each due time is known; ascending."""
        self._below += np.searchsorted(dues_ms, self._edges, side="left")
        self._total += len(dues_ms)

    def add_span(self, first_ms: int, last_ms: int, count: int) -> None:
        """Count `count` messages due in [first_ms, last_ms], one of them at each bound."""
        self._total += count
        for at, edge in enumerate(self._edges.tolist()):
            if edge > last_ms:
                self._below[at:] += count
                return
            if edge > first_ms:
                even = round(count * (edge - first_ms) / (last_ms - first_ms + 1))
                self._below[at] += min(max(even, 1), count - 1)
                self.estimated = True


def mutable_buckets(spark: SparkSession, checkpoint: str, batch_id: int, rules: BatchRules) -> list[MutableBucket]:
    """Read the state that `batch_id` left, one shard at a time, as Spark's state data source gives it."""
    state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint)
    rows = state.select("key.shard_key", "value.groupState.bucket").toLocalIterator()
    buckets = []
    for row in rows:
        messages = decode_chunk(bytes(row["bucket"]))
        dues = np.sort(messages.column("deliver_at_ms").to_numpy())
        buckets.append(MutableBucket(rules.shard_keys.index(row["shard_key"]), dues, messages.nbytes))
    return buckets


def live_segments(store: BucketStore, last_bucket: int, cutoff_ms: int) -> list[Segment]:
    """Return what waits of the buckets up to `last_bucket`; all below `cutoff_ms` is delivered.

    That is the one of the last committed batch: until a batch is committed its messages still count in the state.
    A segment that is delivered in part has its count, bytes and earliest due time corrected.
    """
    if not store.exists():
        return []
    # A merge may replace buckets between the reading of their metadata and that of their chunks.
    version = store.newest_version()
    known = [described_segment(row.asDict()) for row in store.metadata(version) if row["bucket"] <= last_bucket]
    live = [segment for segment in known if segment.max_deliver_at_ms >= cutoff_ms]
    cut = [segment for segment in live if segment.min_deliver_at_ms < cutoff_ms]
    whole = [segment for segment in live if segment.min_deliver_at_ms >= cutoff_ms]
    return whole + (_rest(store, cut, cutoff_ms, version) if cut else [])


def _rest(store: BucketStore, cut: list[Segment], cutoff_ms: int, version: int) -> list[Segment]:
    """Count what is left of segments that reach over the cutoff, by their chunks.

    Of the messages, one chunk of each segment is read: the one that reaches over the cutoff.
    """
    last_ms = max(segment.max_deliver_at_ms for segment in cut)
    partitions, buckets = ({getattr(segment, name) for segment in cut} for name in ("time_partition", "bucket"))
    whole = store.chunks(cutoff_ms, last_ms + 1, partitions, buckets, version).where(f"deliver_at_ms >= {cutoff_ms}")
    across = store.chunks(cutoff_ms, cutoff_ms, partitions, buckets, version)
    rows = (
        across.mapInArrow(_waiting_behind(cutoff_ms), _COUNTED)
        .union(whole.selectExpr("bucket", "shard", "segment", "count", "deliver_at_ms AS first"))
        .groupBy("bucket", "shard", "segment")
        .agg(F.sum("count").alias("count"), F.min("first").alias("first"))
        .collect()
    )
    left = {(row["bucket"], row["shard"], row["segment"]): (row["count"], row["first"]) for row in rows}
    rest = []
    for segment in cut:
        # There is always one, since the segment's last message is at or above the cutoff.
        count, first = left[segment.bucket, segment.shard, segment.segment]
        size = segment.bytes * count // segment.count
        rest.append(replace(segment, count=count, bytes=size, min_deliver_at_ms=first))
    return rest


def _waiting_behind(cutoff_ms: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that counts the messages due at or after `cutoff_ms` of chunks that reach over it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts, firsts = [], []
            for chunk in batch.column("chunk"):
                dues = decode_chunk(chunk.as_py()).column("deliver_at_ms").to_numpy()
                start = int(np.searchsorted(dues, cutoff_ms))
                counts.append(len(dues) - start)
                firsts.append(int(dues[start]))
            identity = [batch.column(name) for name in ("bucket", "shard", "segment")]
            columns = [*identity, pa.array(counts, pa.int64()), pa.array(firsts, pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, names=["bucket", "shard", "segment", "count", "first"])

    return run
