"""One merge of sealed buckets: read, sort, check, and replace in one commit."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.failpoints import failpoint
from sinks.bucket_table import METADATA_COLUMNS, BucketTable
from state.buckets.merge import MergeSlice, merged_rows, slices
from state.buckets.segments import Segment
from state.buckets.table_rows import METADATA_PART, STORED_SCHEMA, described_segment
from state.checkpoint.batch_settings import BatchSettings
from state.order import ORDER
from streaming.spark.session import worker_pool

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Merged:
    """What a merge did: the `buckets` that it replaced, and the live segments that have their messages now."""

    buckets: list[int]
    segments: list[Segment]


def merge_buckets(
    store: BucketTable,
    buckets: Mapping[int, Collection[Segment]],
    delivered_before_ms: int,
    batch_settings: BatchSettings,
) -> Merged:
    """Merge `buckets` into one, which gets the number of the newest.

    `buckets` has the live segments of each bucket number. Messages due before `delivered_before_ms` (epoch ms) are
    delivered for good, and left out. A reader of the table finds either the old buckets or the new one. Raises
    BucketUnreadable, with nothing changed, if the messages do not match the metadata.
    """
    segments = [segment for parts in buckets.values() for segment in parts]
    number = max(buckets)
    version = store.version()
    labels = {segment.time_partition for segment in segments}
    pieces: list[DataFrame] = []
    merged: list[Segment] = []
    try:
        # One slice after the other: a merge never takes more than one core from the batches.
        for within in slices(segments, delivered_before_ms):
            chunks = store.chunks(within.start_ms, within.end_ms, labels, buckets, version)
            pieces.append(_piece(chunks, number, within, batch_settings))
            metadata = pieces[-1].where(f"part = '{METADATA_PART}'").select(*METADATA_COLUMNS).collect()
            merged += (described_segment(row.asDict()) for row in metadata)
        _check(segments, merged, delivered_before_ms)
        failpoint("merging")
        store.replace(buckets, reduce(DataFrame.union, pieces).coalesce(1))
        failpoint("merged")
    finally:
        for piece in pieces:
            piece.unpersist()
    log.info("merged buckets %s: %d segments into %d", sorted(buckets), len(segments), len(merged))
    return Merged(sorted(buckets), merged)


def _piece(chunks: DataFrame, number: int, within: MergeSlice, batch_settings: BatchSettings) -> DataFrame:
    rows = chunks.coalesce(1).sortWithinPartitions("part", *ORDER)
    with worker_pool(chunks.sparkSession):
        piece = rows.mapInArrow(merged_rows(number, within, batch_settings), from_arrow_schema(STORED_SCHEMA))
    return piece.persist(StorageLevel.DISK_ONLY)


def _check(before: Collection[Segment], after: Collection[Segment], delivered_before_ms: int) -> None:
    """Raise BucketUnreadable if the merge has lost or doubled messages (invariant 1).

    For a segment that is delivered in part, the metadata does not have the number of messages that still wait. So the
    check has a lower and an upper bound.
    """
    most = sum(segment.count for segment in before)
    undelivered = (segment for segment in before if segment.min_deliver_at_ms >= delivered_before_ms)
    least = sum(segment.count for segment in undelivered)
    merged = sum(segment.count for segment in after)
    if not least <= merged <= most:
        raise BucketUnreadable(
            f"buckets {sorted({segment.bucket for segment in before})} hold {merged} waiting messages, and their "
            f"metadata says {least} to {most}: they are left unchanged"
        )
