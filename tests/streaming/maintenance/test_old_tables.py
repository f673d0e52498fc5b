"""Tables of the version before, whose parts are ranges of due time: they are read, and merging gives the new form."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import OLD_METADATA, chunks_of, is_old
from state.buckets.segments import Segment, segment_of
from state.buckets.table_rows import STORED_SCHEMA, described_segment, segment_rows
from state.message import decode_chunk
from streaming.job.prefetch_window import PrefetchWindow
from streaming.maintenance.maintenance import Maintenance
from tests.messages import messages, some_batch_settings
from tests.streaming.sealed import seal_messages

HOUR = 3_600_000
BATCH_SETTINGS = some_batch_settings()
DUES = {1: [5, 10, HOUR + 1, 30 * HOUR], 2: [7, HOUR + 2, 30 * HOUR + 1]}
ALL = sorted(due for dues in DUES.values() for due in dues)


def old_part(due: int) -> str:
    start = due // HOUR * HOUR
    return f"{start:015d}-{start + HOUR:015d}"


def seal_as_before(store: BucketTable, number: int, dues: list[int]) -> None:
    """Store a bucket as the version before did: a segment for each hour, in the Delta partition of that hour."""
    rows: list[pa.RecordBatch] = []
    for at, part in enumerate(sorted(set(map(old_part, dues)))):
        own = messages([{"deliver_at_ms": due, "offset": due} for due in dues if old_part(due) == part])
        rows += segment_rows(segment_of(own, number, 0, at, part), own, 10)
    frame = store.spark.createDataFrame(pa.Table.from_batches(rows), from_arrow_schema(STORED_SCHEMA))
    store.append(frame.coalesce(1), "checkpoint", number)


@pytest.fixture
def old(store: BucketTable) -> BucketTable:
    for number, dues in DUES.items():
        seal_as_before(store, number, dues)
    assert store.delta_partitions() == {OLD_METADATA, *map(old_part, ALL)}
    return store


def described(store: BucketTable) -> list[Segment]:
    return [described_segment(row.asDict()) for row in store.metadata()]


def waiting(store: BucketTable, from_ms: int = 0) -> list[int]:
    chunks = store.chunks(0, 10**15, {segment.part for segment in described(store)}).collect()
    dues = [due for row in chunks for due in decode_chunk(bytes(row["chunk"])).column("deliver_at_ms").to_pylist()]
    return sorted(due for due in dues if due >= from_ms)


def maintained(store: BucketTable, catalog: SegmentCatalog, last_bucket: int, cutoff_ms: int) -> None:
    """Let maintenance do all that is due."""
    parts: dict[str, int] = {}
    for segment in described(store):
        parts[segment.part] = max(parts.get(segment.part, 0), segment.max_deliver_at_ms)
    maintenance = Maintenance(store, catalog, parts, (), BATCH_SETTINGS, token=1, fan_in=4, now=lambda: 0.0)
    for _ in range(20):
        maintenance.before_batch(last_bucket, cutoff_ms)
        if not maintenance.busy:
            break
        maintenance.wait(60)
    maintenance.close()


@pytest.mark.thorough
def test_a_window_loads_from_an_old_table(old: BucketTable) -> None:
    window = PrefetchWindow(old, SegmentCatalog(described(old)), 0, [], 2 * HOUR, 100, shards=2)
    chunks = [decode_chunk(bytes(row["chunk"])) for piece in window.take(0, 2 * HOUR) for row in piece.collect()]
    window.close()
    assert sorted(due for chunk in chunks for due in chunk.column("deliver_at_ms").to_pylist()) == ALL[:5]


def test_all_old_buckets_become_one_new_bucket_and_later_ones_are_kept(old: BucketTable) -> None:
    later = seal_messages(old, 3, [{"deliver_at_ms": HOUR + 3, "offset": 0}], BATCH_SETTINGS)
    catalog = SegmentCatalog(described(old))
    maintained(old, catalog, last_bucket=3, cutoff_ms=6)
    assert waiting(old) == sorted([*ALL[1:], HOUR + 3])
    assert {segment.bucket for segment in described(old)} == {2, 3}
    assert set(described(old)) == {*later, *(each for segments in catalog.buckets.values() for each in segments)}
    assert not any(is_old(segment.part) for segment in described(old))
    partitions = old.delta_partitions()
    assert OLD_METADATA not in partitions
    assert partitions.isdisjoint(map(chunks_of, map(old_part, ALL)))


@pytest.mark.thorough
def test_old_parts_that_are_delivered_whole_are_deleted_with_the_metadata_of_all(old: BucketTable) -> None:
    catalog = SegmentCatalog(described(old))
    catalog.forget_before(31 * HOUR)
    maintained(old, catalog, last_bucket=2, cutoff_ms=31 * HOUR)
    assert old.delta_partitions() == set()
