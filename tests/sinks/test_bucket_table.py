"""The table of sealed buckets, on real Delta."""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from sinks.bucket_table import BucketTable
from state.buckets.segments import cut
from state.buckets.table_rows import STORED_SCHEMA, stored_rows
from state.message import decode_chunk, encode_chunk
from tests.eventually import assert_eventually
from tests.messages import messages, some_batch_settings

_HOUR = 3_600_000


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> BucketTable:
    bucket_table = BucketTable(spark, str(tmp_path / "buckets"))
    bucket_table.create(from_arrow_schema(STORED_SCHEMA))
    return bucket_table


def bucket(
    spark: SparkSession, number: int, *dues: int, value: bytes | None = None, bits: int = 10, **batch_settings: Any
) -> DataFrame:
    """Return the rows of a bucket with one message due at each of `dues`."""
    sealed = messages([{"deliver_at_ms": due, "offset": due, "value": value or b"%d" % due} for due in sorted(dues)])
    segments = [
        {**asdict(segment), "chunk": encode_chunk(rows)}
        for segment, rows in cut(sealed, number, 0, 0, some_batch_settings(**batch_settings))
    ]
    batches = stored_rows(bits)(iter(pa.Table.from_pylist(segments).to_batches()))
    rows = pa.Table.from_batches(batches).to_pylist()
    return spark.createDataFrame(rows, from_arrow_schema(STORED_SCHEMA)).coalesce(1)


def dues(read: DataFrame) -> list[int]:
    chunks = [decode_chunk(bytes(row["chunk"])) for row in read.collect()]
    return sorted(due for chunk in chunks for due in chunk.column("deliver_at_ms").to_pylist())


def labels(store: BucketTable) -> set[str]:
    return {row["time_partition"] for row in store.metadata()}


def commits(store: BucketTable) -> int:
    return int(store.spark.sql(f"DESCRIBE HISTORY delta.`{store.path}`").count())


def test_a_bucket_is_stored_with_its_metadata_in_one_commit_and_only_once(
    spark: SparkSession, store: BucketTable
) -> None:
    rows = bucket(spark, 5, 10, 20, 2 * _HOUR)
    for _ in range(2):
        store.append(rows, "checkpoint", 5)
    metadata = store.metadata()
    assert sorted((row["bucket"], row["segment"], row["count"]) for row in metadata) == [(5, 0, 2), (5, 1, 1)]
    assert dues(store.chunks(0, 10 * _HOUR, labels(store))) == [10, 20, 2 * _HOUR]
    assert commits(store) == 2


def test_only_chunks_that_overlap_the_range_are_read_and_only_of_the_given_buckets(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 10, 20, 30), "checkpoint", 1)
    store.append(bucket(spark, 2, 15, 25), "checkpoint", 2)
    everywhere = labels(store)
    assert dues(store.chunks(26, 40, everywhere)) == [10, 20, 30]
    assert dues(store.chunks(0, 15, everywhere)) == [10, 20, 30]
    assert dues(store.chunks(25, 26, everywhere)) == [10, 15, 20, 25, 30]
    assert dues(store.chunks(0, 100, everywhere, buckets=[2])) == [15, 25]
    assert dues(store.chunks(31, 100, everywhere)) == []


def test_a_table_that_lost_its_newest_log_entry_is_not_read_as_the_version_before(
    spark: SparkSession, store: BucketTable
) -> None:
    for number in (1, 2):
        store.append(bucket(spark, number, number), "checkpoint", number)
    store.check_log()
    newest = Path(store.path, "_delta_log", f"{store.version():020d}.json")
    # At another path, since Delta keeps the tables of a session in memory.
    copy = Path(store.path).with_name("copy")
    shutil.copytree(store.path, copy)
    (copy / "_delta_log" / newest.name).unlink()
    with pytest.raises(BucketUnreadable, match=rf"{newest.name} is missing, the newest entry"):
        BucketTable(spark, str(copy)).check_log()


def test_the_same_batch_number_of_another_checkpoint_is_stored(spark: SparkSession, store: BucketTable) -> None:
    store.append(bucket(spark, 1, 10), "checkpoint", 1)
    store.append(bucket(spark, 1, 11), "another", 1)
    assert len(store.metadata()) == 2


def test_deleting_a_time_partition_deletes_its_messages_and_no_others(spark: SparkSession, store: BucketTable) -> None:
    store.append(bucket(spark, 1, 10, 5 * _HOUR), "checkpoint", 1)
    first, second = sorted(labels(store))
    store.delete([first])
    assert dues(store.chunks(0, 10 * _HOUR, [first, second])) == [5 * _HOUR]
    store.compact_metadata(0, 1, deleted=[first])
    assert labels(store) == {second}


def test_a_replacement_is_one_commit_and_an_older_version_stays_readable(
    spark: SparkSession, store: BucketTable
) -> None:
    for number in (1, 2, 3):
        store.append(bucket(spark, number, 10 * number, 10 * number + 1), "checkpoint", number)
    before = store.version()
    store.replace([1, 2], bucket(spark, 2, 10, 11, 20, 21))
    assert store.version() == before + 1
    assert sorted((row["bucket"], row["count"]) for row in store.metadata()) == [(2, 4), (3, 2)]
    everything = [10, 11, 20, 21, 30, 31]
    assert dues(store.chunks(0, 100, labels(store))) == everything
    assert dues(store.chunks(0, 100, labels(store), version=before)) == everything
    assert dues(store.chunks(0, 100, labels(store), buckets=[1], version=before)) == [10, 11]
    assert dues(store.chunks(0, 100, labels(store), buckets=[1])) == []


def test_compacted_metadata_is_one_file_and_keeps_later_buckets_and_their_ids(
    spark: SparkSession, store: BucketTable
) -> None:
    for number in range(1, 5):
        store.append(bucket(spark, number, 10 * number, 10 * number + 5), "checkpoint", number)
    metadata = spark.read.format("delta").load(store.path).where("part = 'metadata'")
    before = sorted(map(repr, metadata.collect()))
    store.compact_metadata(0, 3)
    now = spark.read.format("delta").load(store.path).where("part = 'metadata'")
    assert sorted(map(repr, now.collect())) == before
    assert len({Path(file).name for file in now.inputFiles()}) == 2
    assert dues(store.chunks(0, 100, labels(store))) == sorted(10 * n + m for n in range(1, 5) for m in (0, 5))


@pytest.mark.parametrize("seals", [1, 5])
def test_buckets_sealed_while_others_are_replaced_are_kept(
    spark: SparkSession, store: BucketTable, tmp_path: Path, seals: int
) -> None:
    for number in (1, 2):
        store.append(bucket(spark, number, 10 * number), "checkpoint", number)
    tries = tmp_path / "tries"
    tries.touch()

    def slowly(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tries.open("a") as log:
            log.write("x")
        time.sleep(2)
        yield from rows

    table = spark.read.format("delta").load(store.path).where("bucket <= 2").coalesce(1)
    with ThreadPoolExecutor(1) as executor:
        replacing = executor.submit(store.replace, [1, 2], table.mapInArrow(slowly, table.schema))
        for number in range(3, 3 + seals):
            # A seal conflicts with each try, until sealing has to wait.
            seen = len(tries.read_text())
            assert_eventually(lambda: replacing.done() or len(tries.read_text()) > seen, 60, "a try")  # noqa: B023
            store.append(bucket(spark, number, 10 * number), "checkpoint", number)
        replacing.result()
    numbers = list(range(1, 3 + seals))
    assert sorted(row["bucket"] for row in store.metadata()) == numbers
    assert dues(store.chunks(0, 1000, labels(store))) == [10 * number for number in numbers]


def test_a_bucket_that_two_processes_seal_at_the_same_time_is_stored_once(
    spark: SparkSession, store: BucketTable, tmp_path: Path
) -> None:
    begun, sealed = tmp_path / "begun", tmp_path / "sealed"

    def late(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        deadline_s = time.monotonic() + 60
        while not sealed.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        yield from rows

    rows = bucket(spark, 5, 10, 20)
    with ThreadPoolExecutor(1) as executor:
        later = executor.submit(store.append, rows.mapInArrow(late, rows.schema), "checkpoint", 5)
        assert_eventually(begun.exists, 60, "the later seal")
        BucketTable(spark, store.path).append(rows, "checkpoint", 5)
        sealed.touch()
        later.result()
    assert [(row["bucket"], row["count"]) for row in store.metadata()] == [(5, 2)]
    assert dues(store.chunks(0, 100, labels(store))) == [10, 20]
    assert store.newest_of("checkpoint") == 5
    assert commits(store) == 2


def test_time_slots_are_those_of_the_segments_that_an_instant_falls_inside(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 10, 20, 30, bits=4, segment_max_messages=2), "checkpoint", 1)
    store.append(bucket(spark, 2, 15, 25, bits=3), "checkpoint", 2)

    def slots(*instants_ms: int, version: int | None = None) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in store.slots(instants_ms, version).collect())

    one, other = (1, 0, 0, 4, [0, 16], [1, 1]), (2, 0, 0, 3, [8, 24], [1, 1])
    assert slots(16) == slots(16, 20, 99) == [one, other]
    assert slots(11, 15) == [one]
    assert slots(25) == [other]
    assert slots(10, 26, 30) == []
    assert slots(16, version=store.version() - 1) == [one]


def test_the_offsets_are_not_read_with_the_time_slots(spark: SparkSession, store: BucketTable) -> None:
    # So far apart that each offset takes 10 bytes, in two time slots.
    instants = range(0, 50_000 * 70_000, 70_000)
    whole: dict[str, Any] = {"segment_max_ms": 10**10, "time_partition_ms": 10**10}
    store.append(bucket(spark, 1, *instants, bits=31, **whole), "checkpoint", 1)
    offsets = sum(len(entry["offsets"]) for row in store.index_entries() for entry in row["index_entries"])
    assert offsets > 500_000
    # Delta's log and the file footers take about 80,000 bytes, whatever is read.
    assert _bytes_read(spark, store.slots([10**9])) < offsets / 4


def test_the_bytes_read_depend_on_the_range_and_not_on_the_table(spark: SparkSession, store: BucketTable) -> None:
    # One file of 20 MB, 100 chunks in order of due time, and as much in another time partition.
    value = random.Random(1).randbytes(100_000)
    hour = {"segment_max_ms": 36_000, "segment_max_messages": 10}
    for start in (0, _HOUR):
        store.append(
            bucket(spark, start // _HOUR, *range(start, start + _HOUR, 18_000), value=value, **hour), "c", start
        )
    partitions = labels(store)
    whole = _bytes_read(spark, store.chunks(0, 2 * _HOUR, partitions))
    tenth = _bytes_read(spark, store.chunks(_HOUR, _HOUR + _HOUR // 10, partitions))
    hundredth = _bytes_read(spark, store.chunks(_HOUR, _HOUR + _HOUR // 100, partitions))
    metadata = _bytes_read(spark, spark.read.format("delta").load(store.path).where("part = 'metadata'"))
    assert whole > 2 * 200 * len(value)
    # The granularity is a row group of 1 MB.
    assert tenth < whole / 2 / 10 * 1.5 + 2**21
    assert hundredth < whole / 2 / 100 + 2**21
    assert metadata < whole / 100


def _bytes_read(spark: SparkSession, rows: DataFrame) -> int:
    """Run `rows` and return how many bytes its stages read from files, as Spark counts them."""
    spark.sparkContext.setJobGroup(uuid.uuid4().hex, "bytes read")
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    rows.write.format("noop").mode("overwrite").save()
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", cast(str, None))
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    return sum(context.statusStore().lastStageAttempt(stage).inputBytes() for stage in stages)
