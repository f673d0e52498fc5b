"""A prefetch window over sealed buckets, and the messages that batches take from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.reach import Reach
from state.buckets.segments import cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment, segment_rows
from state.checkpoint.batch_settings import BatchSettings
from state.message import decode_chunk
from streaming.job.sealed.prefetch_window import PrefetchWindow
from tests.messages import messages, some_batch_settings

BATCH_SETTINGS = some_batch_settings()
Dues = dict[int, list[int]]


def seal(store: BucketTable, dues: Dues, batch_id: int, batch_settings: BatchSettings = BATCH_SETTINGS) -> None:
    """Store buckets in one commit, each with messages due at its `dues`. Offsets are numbered through all buckets."""
    offsets, rows = iter(range(10**9)), list[pa.RecordBatch]()
    for number, bucket_dues in dues.items():
        sealed = messages([{"deliver_at_ms": due, "offset": next(offsets)} for due in sorted(bucket_dues)])
        for segment, part in cut(sealed, number, 0, batch_settings):
            rows += segment_rows(segment, part, batch_settings.index_precision_bits)
    frame = store.spark.createDataFrame(pa.Table.from_batches(rows), from_arrow_schema(STORED_SCHEMA))
    store.append(frame.coalesce(1), "checkpoint", batch_id)


def window_of(
    store: BucketTable, ahead_ms: int = 1_000, max_bytes: int = 10**9, worth: int = 100_000, **options: Any
) -> tuple[PrefetchWindow, SegmentCatalog]:
    """Return a window with all buckets of the table, and their catalog."""
    catalog = SegmentCatalog(described_segment(row.asDict()) for row in store.metadata())
    return PrefetchWindow(store, Reach(catalog, ahead_ms, max_bytes, worth), 0, [], shards=2, **options), catalog


def taken(window: PrefetchWindow, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Return (due, offset) of each message that a batch takes."""
    taken_messages: list[tuple[int, int]] = []
    for piece in window.take(start_ms, end_ms):
        for row in piece.collect():
            chunk = decode_chunk(bytes(row["chunk"]))
            pairs = zip(*(chunk.column(name).to_pylist() for name in ("deliver_at_ms", "offset")), strict=True)
            taken_messages += [(due, offset) for due, offset in pairs if start_ms <= due < row["until_ms"]]
    window.advance(end_ms)
    return taken_messages


def in_batches(window: PrefetchWindow, cutoffs: Iterable[int]) -> Iterator[list[tuple[int, int]]]:
    """Return (due, offset) of each message, by batch. The batches end at `cutoffs`."""
    start_ms = 0
    for cutoff_ms in cutoffs:
        yield taken(window, start_ms, cutoff_ms)
        start_ms = cutoff_ms
