"""The sealed messages that wait after one committed batch, from metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.segment_figures import slots
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.index.due_counts import DueCounts
from state.message import decode_chunk
from streaming.status.due_histogram import DueHistogram

_COUNTS_SCHEMA = "bucket long, shard int, segment int, count long, first long"


@dataclass(frozen=True)
class SealedBuckets:
    """The live segments of sealed buckets at `version` of the table.

    For a segment that is staged in part, count, bytes and earliest due time describe the part that still waits.
    """

    store: BucketTable
    version: int | None
    segments: list[Segment]

    def count_into(self, histogram: DueHistogram) -> None:
        """Add the waiting messages to `histogram`.

        Reads the index's counts per time slot, but only for segments that an edge of the histogram cuts. Raises
        BucketUnreadable if the metadata is corrupt.
        """
        cut: dict[tuple[int, int, int], Segment] = {}
        for segment in self.segments:
            if histogram.cuts(segment.min_deliver_at_ms, segment.max_deliver_at_ms):
                cut[segment.bucket, segment.shard, segment.segment] = segment
            else:
                histogram.add_uncut(segment.min_deliver_at_ms, segment.count)
        rows = slots(self.store, histogram.edges_ms, self.version).toLocalIterator() if cut else ()
        for row in rows:
            # The rows also include segments of later batches, and segments with a waiting part that no edge cuts.
            if (identity := (row["bucket"], row["shard"], row["segment"])) in cut:
                segment = cut.pop(identity)
                counts = waiting_counts(segment, row["precision_bits"], row["ticks_ms"], row["counts"])
                histogram.add_slots(counts, segment.min_deliver_at_ms, segment.max_deliver_at_ms)
        if cut:
            raise BucketUnreadable(
                f"version {self.version} of {self.store.path} has no due times for the messages of {len(cut)} "
                f"segments, such as {next(iter(cut.values()))}: the metadata is corrupt"
            )


def sealed_buckets(
    store: BucketTable, version: int, last_bucket: int, cutoff_ms: int, overdue_bucket: int | None = None
) -> SealedBuckets:
    """Return what still waits in sealed buckets at `version` of the table, for one committed batch.

    Metadata and chunks are read at the same version, because a merge may replace buckets between the two reads.

    Args:
        store: the table of sealed buckets.
        version: the table version to read.
        last_bucket: the last bucket of the batch. Later buckets are left out: until their batch is committed, their
            messages count in the state.
        cutoff_ms: the batch's cutoff (epoch ms). Messages due below it are staged.
        overdue_bucket: the bucket of which also those still wait: before a checkpoint's first batch.
    """
    segments = [described_segment(row.asDict()) for row in store.metadata(version) if row["bucket"] <= last_bucket]
    whole = [each for each in segments if each.bucket == overdue_bucket or each.min_deliver_at_ms >= cutoff_ms]
    cut = [
        each
        for each in segments
        if each.bucket != overdue_bucket and each.min_deliver_at_ms < cutoff_ms <= each.max_deliver_at_ms
    ]
    return SealedBuckets(store, version, whole + (_waiting_parts(store, cut, cutoff_ms, version) if cut else []))


def waiting_counts(segment: Segment, precision_bits: int, slots_ms: Iterable[int], counts: Iterable[int]) -> DueCounts:
    """Count the waiting messages of `segment` by time slot.

    `slots_ms` and `counts` describe the segment when it was sealed: for each input partition, its time slots and their
    counts. All messages in time slots after the slot of the first waiting message still wait. The remaining waiting
    messages are in that slot.
    """
    waiting = DueCounts(precision_bits)
    first_ms = segment.min_deliver_at_ms >> precision_bits << precision_bits
    for slot_ms, count in zip(slots_ms, counts, strict=True):
        if slot_ms > first_ms:
            waiting.add(slot_ms, count)
    waiting.add(first_ms, segment.count - len(waiting))
    return waiting


def _waiting_parts(store: BucketTable, cut: list[Segment], cutoff_ms: int, version: int) -> list[Segment]:
    """Return the segments `cut` by the cutoff, with count, bytes and earliest due time of their waiting parts.

    Counts by chunk rows. Only one chunk of each segment is decoded: the one that the cutoff falls into.
    """
    last_ms = max(segment.max_deliver_at_ms for segment in cut)
    parts, buckets = ({getattr(segment, name) for segment in cut} for name in ("part", "bucket"))
    whole = store.chunks(cutoff_ms, last_ms + 1, parts, buckets, version).where(f"deliver_at_ms >= {cutoff_ms}")
    across = store.chunks(cutoff_ms, cutoff_ms, parts, buckets, version)
    rows = (
        across.mapInArrow(_count_from(cutoff_ms), _COUNTS_SCHEMA)
        .union(whole.selectExpr("bucket", "shard", "segment", "count", "deliver_at_ms AS first"))
        .groupBy("bucket", "shard", "segment")
        .agg(F.sum("count").alias("count"), F.min("first").alias("first"))
        .collect()
    )
    waiting = {(row["bucket"], row["shard"], row["segment"]): (row["count"], row["first"]) for row in rows}
    waiting_parts = []
    for segment in cut:
        # Always present: the segment's last message is due at or after the cutoff.
        count, first = waiting[segment.bucket, segment.shard, segment.segment]
        size = segment.bytes * count // segment.count
        waiting_parts.append(replace(segment, count=count, bytes=size, min_deliver_at_ms=first))
    return waiting_parts


def _count_from(cutoff_ms: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the Arrow function that counts, in each chunk, the messages due at or after `cutoff_ms`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts, firsts = [], []
            for chunk in batch.column("chunk"):
                dues_ms = decode_chunk(chunk.as_py()).column("deliver_at_ms").to_numpy()
                start = int(np.searchsorted(dues_ms, cutoff_ms))
                counts.append(len(dues_ms) - start)
                firsts.append(int(dues_ms[start]))
            identity = [batch.column(name) for name in ("bucket", "shard", "segment")]
            columns = [*identity, pa.array(counts, pa.int64()), pa.array(firsts, pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, names=["bucket", "shard", "segment", "count", "first"])

    return run
