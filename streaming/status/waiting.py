"""What waits after one committed batch: mutable buckets from Spark's state, sealed ones from their metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import BucketUnreadable
from sinks.bucket_table import BucketTable
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.checkpoint.batch_settings import BatchSettings
from state.index.due_counts import DueCounts
from state.message import decode_chunk
from streaming.status.due_histogram import DueHistogram

_COUNTED = "bucket long, shard int, segment int, count long, first long"


@dataclass(frozen=True)
class MutableBucket:
    """One shard's messages that are not sealed: their due times (epoch ms, ascending) and bytes in memory."""

    shard: int
    dues_ms: np.ndarray
    bytes: int


@dataclass(frozen=True)
class SealedBuckets:
    """What waits in sealed buckets: their live segments, as the table tells them at `version`.

    A segment that is delivered in part has its count, bytes and earliest due time corrected.
    """

    store: BucketTable
    version: int | None
    segments: list[Segment]

    def count_into(self, histogram: DueHistogram) -> None:
        """Count what waits by due time; only of segments that an edge cuts, the metadata is read again, for its ticks.

        Raises BucketUnreadable if the metadata is damaged.
        """
        cut: dict[tuple[int, int, int], Segment] = {}
        for segment in self.segments:
            if histogram.cuts(segment.min_deliver_at_ms, segment.max_deliver_at_ms):
                cut[segment.bucket, segment.shard, segment.segment] = segment
            else:
                histogram.add_uncut(segment.min_deliver_at_ms, segment.count)
        rows = self.store.slots(histogram.edges_ms, self.version).toLocalIterator() if cut else ()
        for row in rows:
            # Also there: segments of later batches, and those of which no edge cuts what is left.
            if (identity := (row["bucket"], row["shard"], row["segment"])) in cut:
                segment = cut.pop(identity)
                counts = waiting_counts(segment, row["precision_bits"], row["ticks_ms"], row["counts"])
                histogram.add_slots(counts, segment.min_deliver_at_ms, segment.max_deliver_at_ms)
        if cut:
            raise BucketUnreadable(
                f"version {self.version} of {self.store.path} does not tell when the messages of {len(cut)} segments "
                f"are due, of {next(iter(cut.values()))} for one: the metadata is damaged"
            )


def mutable_buckets(
    spark: SparkSession, checkpoint: str, batch_id: int, batch_settings: BatchSettings
) -> list[MutableBucket]:
    """Read the state that `batch_id` left, one shard at a time, as Spark's state data source gives it."""
    state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint)
    rows = state.select("key.shard_key", "value.groupState.bucket").toLocalIterator()
    buckets = []
    for row in rows:
        messages = decode_chunk(bytes(row["bucket"]))
        dues = np.sort(messages.column("deliver_at_ms").to_numpy())
        buckets.append(MutableBucket(batch_settings.shard_keys.index(row["shard_key"]), dues, messages.nbytes))
    return buckets


def sealed_buckets(store: BucketTable, version: int, last_bucket: int, cutoff_ms: int) -> SealedBuckets:
    """Return what waits of the buckets up to `last_bucket` in a `version` of the table; all below `cutoff_ms` is
    delivered.

    That is the one of the last committed batch: until a batch is committed its messages still count in the state.
    A merge may replace buckets between two readings, of their metadata or of their chunks: hence of one version.
    """
    known = [described_segment(row.asDict()) for row in store.metadata(version) if row["bucket"] <= last_bucket]
    live = [segment for segment in known if segment.max_deliver_at_ms >= cutoff_ms]
    cut = [segment for segment in live if segment.min_deliver_at_ms < cutoff_ms]
    whole = [segment for segment in live if segment.min_deliver_at_ms >= cutoff_ms]
    return SealedBuckets(store, version, whole + (_rest(store, cut, cutoff_ms, version) if cut else []))


def waiting_counts(segment: Segment, precision_bits: int, slots_ms: Iterable[int], counts: Iterable[int]) -> DueCounts:
    """Return, by tick, what waits of `segment`; `slots_ms` and `counts` tell what was sealed, source by source.

    Ticks behind that of the first message that waits do so whole. What they do not hold is in that one, delivered
    in part or not.
    """
    waiting = DueCounts(precision_bits)
    first_ms = segment.min_deliver_at_ms >> precision_bits << precision_bits
    for slot_ms, count in zip(slots_ms, counts, strict=True):
        if slot_ms > first_ms:
            waiting.add(slot_ms, count)
    waiting.add(first_ms, segment.count - len(waiting))
    return waiting


def _rest(store: BucketTable, cut: list[Segment], cutoff_ms: int, version: int) -> list[Segment]:
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


def _waiting_behind(cutoff_ms: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that counts the messages due at or after `cutoff_ms` of chunks that reach over it."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
