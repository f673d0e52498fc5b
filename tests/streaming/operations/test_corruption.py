"""Missing, truncated or changed files of sealed buckets are found, reported, and removed without losing the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable, StorageFailed
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from sinks.topics.topics import ensure_topics
from state.buckets.cancelled import CANCELLED_SCHEMA, cancelled_rows
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows, chunks_of, metadata_of, sealed_part
from state.buckets.reach import Reach
from state.buckets.table_rows import STORED_SCHEMA, described_segment
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.switch_over import writer_of_birth, writer_of_repair
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.operations.corruption import Corruption, find_corruption, lost_ids, repaired
from streaming.operations.repair import _repair
from tests.conftest import MakeSettings
from tests.messages import some_batch_settings
from tests.streaming.sealed import sealed_table, waiting_offsets
from tests.thorough import some_thorough

_HOUR = 3_600_000
BUCKETS = (1, 2, 3, 4, 5, 6)
ALL = [10 * number + at for number in BUCKETS for at in range(5)]
BITS = 10
BATCH_SETTINGS = some_batch_settings(index_precision_bits=BITS, segment_max_messages=3)


@pytest.fixture(scope="module")
def table(spark: SparkSession, empty_table: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six buckets, each with four messages in the first hour and one in the third: two segments in one file."""
    path = tmp_path_factory.mktemp("table") / "buckets"
    shutil.copytree(empty_table, path)
    buckets = []
    for number in BUCKETS:
        dues = [1_000 * number + at for at in range(4)] + [2 * _HOUR + number]
        rows = [{"deliver_at_ms": due, "offset": 10 * number + at} for at, due in enumerate(dues)]
        buckets.append(sealed_table(number, rows, BATCH_SETTINGS))
    # The files of each bucket are in its own Delta partitions.
    frame = spark.createDataFrame(pa.concat_tables(buckets), from_arrow_schema(STORED_SCHEMA)).coalesce(1)
    BucketTable(spark, str(path)).append(frame, "checkpoint", BUCKETS[-1])
    return str(path)


@pytest.fixture
def sealed(spark: SparkSession, table: str, tmp_path: Path) -> BucketTable:
    """A copy of that table to damage."""
    shutil.copytree(table, tmp_path / "buckets")
    return BucketTable(spark, str(tmp_path / "buckets"))


def file_of(store: BucketTable, bucket: int, partition_of: Callable[[str], str] = chunks_of) -> Path:
    """Return the only file of a bucket with its chunks, or with its metadata."""
    (file,) = Path(store.path, f"part={partition_of(sealed_part(bucket))}").glob("*.parquet")
    return file


def change(file: Path, damage: str) -> None:
    whole = bytearray(file.read_bytes())
    # Delete Hadoop's checksum file. An object store has none.
    file.with_name(f".{file.name}.crc").unlink()
    at = len(whole) // 3
    match damage:
        case "missing":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "cut short":
            file.write_bytes(whole[: 2 * at])
        case "zeroed":
            file.write_bytes(whole[:at] + bytes(at) + whole[2 * at :])
        case "one byte":
            # In the chunk, which takes most of the file.
            position = whole.index(b"ARROW") if b"ARROW" in whole else whole.index(b"\xff\xff\xff\xff") + 64
            whole[position] ^= 0xFF
            file.write_bytes(whole)


DAMAGES = ["missing", "empty", "cut short", "zeroed", "one byte"]


def ids(offsets_by_source: dict[tuple[str, int], BitMap64]) -> list[int]:
    return [offset for offsets in offsets_by_source.values() for offset in offsets]


def remove_corruption(store: BucketTable, corruption: Corruption) -> None:
    with repaired(store, corruption, BITS) as (partitions, rows):
        store.replace_partitions(partitions, rows)


@pytest.mark.parametrize("damage", some_thorough(DAMAGES, always=("one byte",)))
def test_loading_a_damaged_file_is_an_error_that_names_it_and_its_waiting_messages(
    sealed: BucketTable, damage: str
) -> None:
    file = file_of(sealed, 2)
    change(file, damage)
    segments = [described_segment(row.asDict()) for row in sealed.metadata()]
    window = PrefetchWindow(sealed, Reach(SegmentCatalog(segments), _HOUR, 1_000), 0, [], shards=2)
    with pytest.raises(BucketUnreadable) as raised:
        window.take(0, _HOUR)
    window.close()
    assert f"{file} is missing or damaged (" in str(raised.value)
    assert "It holds 5 messages of bucket 2, due from 1970-01-01T00:00:02.000Z to 1970-01-01T02:00:00.002Z" in str(
        raised.value
    )
    assert "the segments (shard/segment) 0/0, 0/1. " in str(raised.value)
    assert "delayline repair --skip" in str(raised.value)


def test_unreadable_data_is_removed_in_one_commit_and_all_other_data_is_kept(
    sealed: BucketTable, repair_options: None
) -> None:
    files = [file_of(sealed, number) for number in BUCKETS]
    for file, damage in zip(files, DAMAGES, strict=False):
        change(file, damage)
    corruption = find_corruption(sealed, 0)
    assert {each.path.rpartition("/")[2] for each in corruption.files} == {file.name for file in files[:5]}
    lost = ids(lost_ids(sealed, corruption, BITS, 0))
    assert {offset // 10 for offset in lost} == {1, 2, 3, 4, 5}
    before = sealed.version()
    remove_corruption(sealed, corruption)
    assert sealed.version() == before + 1
    assert find_corruption(sealed, 0) == Corruption([], [])
    assert waiting_offsets(sealed) == sorted(set(ALL) - set(lost))
    assert sum(row["count"] for row in sealed.metadata()) == len(ALL) - len(lost)


@pytest.mark.thorough
def test_a_missing_file_loses_all_messages_of_its_segments(sealed: BucketTable, repair_options: None) -> None:
    change(file_of(sealed, 2), "missing")
    corruption = find_corruption(sealed, 0)
    assert [(each.identity, each.readable) for each in corruption.segments] == [((2, 0, 0), 0), ((2, 0, 1), 0)]
    assert lost_ids(sealed, corruption, BITS, 0) == {("delayline-in", 0): BitMap64([20, 21, 22, 23, 24])}
    assert not corruption.may_lose_schedules, "the metadata says that none of them repeats"


def test_a_part_that_has_lost_both_its_files_may_have_had_schedules(sealed: BucketTable, repair_options: None) -> None:
    for partition_of in (chunks_of, metadata_of):
        change(file_of(sealed, 2, partition_of), "missing")
    corruption = find_corruption(sealed, 0)
    assert (len(corruption.files), corruption.segments) == (2, [])
    assert corruption.may_lose_schedules


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param((chunks_of, metadata_of), id="both files", marks=pytest.mark.thorough),
        pytest.param((chunks_of,), id="its chunks"),
    ],
)
def test_a_repair_removes_a_part_that_lost_its_files_and_notes_if_it_may_have_had_schedules(
    sealed: BucketTable,
    repair_options: None,
    make_settings: MakeSettings,
    tmp_path: Path,
    lost: tuple[Callable[[str], str], ...],
) -> None:
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings, 1)
    announce_origin(settings, CheckpointOrigin("c", 1, settings.bucket.shards))
    sealed.fence(writer_of_birth("c"))
    for partition_of in lost:
        change(file_of(sealed, 2, partition_of), "missing")
    report, before = tmp_path / "report.json", sealed.version()
    with closing(HeldLease(settings, "repair")) as lease:
        found = _repair(sealed.spark, settings, False, report, lease)
        assert (found.taken_out, report.exists(), sealed.version()) == (False, False, before)
        result = _repair(sealed.spark, settings, True, report, lease)
    assert (result.taken_out, result.corruption) == (True, found.corruption)
    assert len(json.loads(report.read_text())["files"]) == len(lost)
    # A rebuild cannot know how far the schedules have come that were in the part.
    assert sealed.is_fenced(writer_of_repair("c")) == (metadata_of in lost)
    assert find_corruption(sealed, 0) == Corruption([], [])
    assert waiting_offsets(sealed) == sorted({*ALL} - {20, 21, 22, 23, 24})


@pytest.mark.thorough
def test_delivered_messages_do_not_count_as_lost(sealed: BucketTable, repair_options: None) -> None:
    change(file_of(sealed, 2), "missing")
    corruption = find_corruption(sealed, 2_003)
    assert [each.identity for each in corruption.segments] == [(2, 0, 1)]
    assert ids(lost_ids(sealed, corruption, BITS, 2_003)) == [23, 24]
    everything = find_corruption(sealed, 3 * _HOUR)
    assert len(everything.files) == 1
    assert not everything.segments
    remove_corruption(sealed, everything)
    assert find_corruption(sealed, 3 * _HOUR) == Corruption([], [])


@pytest.mark.parametrize("damage", some_thorough(["cut short", "zeroed"], always=("zeroed",)))
def test_lost_metadata_is_rebuilt_from_the_messages(sealed: BucketTable, repair_options: None, damage: str) -> None:
    columns = ("bucket", "shard", "segment", "part", "deliver_at_ms", "max_deliver_at_ms", "count", "bytes")
    before = sorted(tuple(row[name] for name in columns) for row in sealed.metadata())
    change(file_of(sealed, 3, metadata_of), damage)
    corruption = find_corruption(sealed, 0)
    assert {(each.identity, each.described) for each in corruption.segments} == {
        ((3, 0, number), None) for number in (0, 1)
    }
    assert lost_ids(sealed, corruption, BITS, 0) == {}
    assert not corruption.may_lose_schedules
    remove_corruption(sealed, corruption)
    assert sorted(tuple(row[name] for name in columns) for row in sealed.metadata()) == before
    assert waiting_offsets(sealed) == ALL


@pytest.mark.thorough
def test_a_file_that_is_readable_only_now_and_then_stops_the_repair_before_it_removes_anything(
    sealed: BucketTable, repair_options: None
) -> None:
    change(file_of(sealed, 2, metadata_of), "missing")
    corruption = find_corruption(sealed, 0)
    assert sum(segment.readable for segment in corruption.segments) == 5
    before = sealed.version()
    file_of(sealed, 2).unlink()
    with pytest.raises(StorageFailed, match="had other content when it was read again"):
        lost_ids(sealed, corruption, BITS, 0)
    with pytest.raises(StorageFailed, match=f"{chunks_of(sealed_part(2))}.* had other content"):
        remove_corruption(sealed, corruption)
    assert sealed.version() == before


@pytest.mark.parametrize("damage", some_thorough(["missing", "one byte"], always=("one byte",)))
def test_lost_ids_of_cancelled_messages_are_counted_and_removed(
    sealed: BucketTable, repair_options: None, damage: str
) -> None:
    kind, row = IdRows.CANCELLED, {"topic": "delayline-in", "partition": 0, "from_ms": 2_000, "until_ms": 2_001}
    cancelled = pa.Table.from_pylist([{**row, "offset": offset} for offset in (20, 21)], CANCELLED_SCHEMA)
    sealed.append(sealed.spark.createDataFrame(cancelled_rows(cancelled, 7)), "checkpoint", 7)
    (file,) = Path(sealed.path, f"part={kind.partition(7)}").glob("*.parquet")
    change(file, damage)
    corruption = find_corruption(sealed, 0)
    assert (corruption.lost_rows(kind), corruption.lost_rows(IdRows.NAMED), corruption.segments) == (1, 0, [])
    remove_corruption(sealed, corruption)
    assert find_corruption(sealed, 0) == Corruption([], [])
    assert waiting_offsets(sealed) == ALL
