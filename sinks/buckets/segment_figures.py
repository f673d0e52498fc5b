"""Figures from the metadata of segments, for reports and a rebuild: how many messages are due when, and their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import DataFrame, Row

from sinks.buckets.bucket_table import BucketTable


def precisions(store: BucketTable, version: int | None = None) -> set[int]:
    """Return the precisions, in bits, of all index entries, now or at `version`."""
    rows = store.segment_rows(version).select("precision_bits").distinct().collect()
    return {row["precision_bits"] for row in rows}


def index_entries(store: BucketTable, version: int | None = None) -> Iterator[Row]:
    """Yield `precision_bits` and `index_entries` of each segment, now or at `version`.

    The files are read task by task, and the entries are never all in memory: their size grows with the number of
    waiting messages.
    """
    rows = store.segment_rows(version).select("precision_bits", "index_entries")
    entries: Iterator[Row] = rows.toLocalIterator()
    return entries


def slots(store: BucketTable, instants_ms: Iterable[int], version: int | None = None) -> DataFrame:
    """Return the counts by time slot of the segments that one of `instants_ms` cuts, now or at `version`.

    Such a segment has messages due before the instant, and others due then or later. The columns are bucket, shard,
    segment, precision_bits, and two arrays with an element for each time slot and source: ticks_ms (where the slot
    begins) and counts.
    """
    cut = " OR ".join(f"(deliver_at_ms < {at_ms} AND max_deliver_at_ms >= {at_ms})" for at_ms in instants_ms)
    # Only these fields of the entries: the offsets, which are most of the bytes, are not read.
    entries = ("index_entries.tick_ms AS ticks_ms", "index_entries.count AS counts")
    rows = store.segment_rows(version).where(cut)
    return rows.selectExpr("bucket", "shard", "segment", "precision_bits", *entries)
