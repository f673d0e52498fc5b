"""The table of sealed buckets, on real Delta: what is stored, found and deleted."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable, FormatMismatch
from sinks.buckets.bucket_table import BucketTable
from state.buckets.parts import chunks_of, metadata_of
from state.buckets.table_rows import STORED_SCHEMA
from tests.eventually import assert_eventually
from tests.sinks.buckets.bucket_rows import HOUR, bucket, dues, parts
from tests.streaming.sealed import written_late


def test_a_bucket_is_stored_with_its_metadata_in_one_commit_and_only_once(
    spark: SparkSession, store: BucketTable
) -> None:
    rows = bucket(spark, 5, 10, 20, 2 * HOUR, segment_max_messages=2)
    for _ in range(2):
        store.append(rows, "checkpoint", 5)
    metadata = store.metadata()
    assert sorted((row["bucket"], row["segment"], row["count"]) for row in metadata) == [(5, 0, 2), (5, 1, 1)]
    assert dues(store.chunks(0, 10 * HOUR, parts(store))) == [10, 20, 2 * HOUR]
    assert store.newest_version() == 1


def test_only_chunks_that_overlap_the_range_are_read_and_only_of_the_given_buckets(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 10, 20, 30), "checkpoint", 1)
    store.append(bucket(spark, 2, 15, 25), "checkpoint", 2)
    everywhere = parts(store)
    assert dues(store.chunks(26, 40, everywhere)) == [10, 20, 30]
    assert dues(store.chunks(0, 15, everywhere)) == [10, 20, 30]
    assert dues(store.chunks(25, 26, everywhere)) == [10, 15, 20, 25, 30]
    assert dues(store.chunks(0, 100, everywhere, buckets=[2])) == [15, 25]
    assert dues(store.chunks(31, 100, everywhere)) == []


@pytest.mark.parametrize(("stored", "named"), [("'delayline.format' = '1'", "has format 1"), (None, "has format None")])
def test_a_table_of_another_format_names_both(store: BucketTable, stored: str | None, named: str) -> None:
    change = "UNSET TBLPROPERTIES ('delayline.format')" if stored is None else f"SET TBLPROPERTIES ({stored})"
    store.spark.sql(f"ALTER TABLE delta.`{store.path}` {change}")
    for use in (store.exists, lambda: store.create(from_arrow_schema(STORED_SCHEMA))):
        with pytest.raises(FormatMismatch, match=f"{named}, but this Delayline reads format 2"):
            use()


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
    with pytest.raises(BucketUnreadable, match=rf"{newest.name} is missing. It is the newest entry"):
        BucketTable(spark, str(copy)).check_log()


def test_a_table_that_delta_has_forgotten_meanwhile_is_read_as_it_is(spark: SparkSession, store: BucketTable) -> None:
    jvm: Any = spark.sparkContext._jvm
    # As after an hour in which nothing has read or written the table.
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    before = store.version()
    store.append(bucket(spark, 1, 100), "c", 1)
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    store.append(bucket(spark, 2, 200), "c", 2)
    assert store.version() == before + 2
    assert store.newest_of("c") == 2
    assert dues(store.chunks(0, 1_000, ["000000000001", "000000000002"], version=store.version())) == [100, 200]


@pytest.mark.thorough
def test_the_newest_batch_is_known_without_the_checksum_that_a_crash_has_left_out(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 100), "a", 1)
    store.append(bucket(spark, 2, 200), "b", 7)
    for checksum in Path(store.path, "_delta_log").glob("*.crc"):
        checksum.unlink()
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    store.newest_version()
    assert (store.newest_of("a"), store.newest_of("b"), store.newest_of("c")) == (1, 7, None)


def test_an_append_runs_no_job_but_its_own_once_the_table_was_looked_at_ahead(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 100), "c", 1)
    store.look_ahead()
    before = _jobs(spark)
    store.append(bucket(spark, 2, 200), "c", 2)
    assert _jobs(spark) == before + 1
    store.append(bucket(spark, 3, 300), "c", 3)
    assert _jobs(spark) > before + 2, "what an append costs that was not looked at ahead"


def _jobs(spark: SparkSession) -> int:
    """Return how many jobs Spark has run."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


@pytest.mark.thorough
def test_the_same_batch_number_of_another_checkpoint_is_stored(spark: SparkSession, store: BucketTable) -> None:
    store.append(bucket(spark, 1, 10), "checkpoint", 1)
    store.append(bucket(spark, 1, 11), "another", 1)
    assert len(store.metadata()) == 2


def test_a_seal_writes_two_files_however_far_apart_its_messages_are_due(
    spark: SparkSession, store: BucketTable
) -> None:
    year = 365 * 24 * HOUR
    store.append(bucket(spark, 1, *range(0, year, year // 5000)), "checkpoint", 1)
    assert len(store.files()) == 2
    assert len(store.metadata()) == 1


def test_the_size_is_that_of_the_files_that_the_table_names(spark: SparkSession, store: BucketTable) -> None:
    assert store.size() == (0, 0)
    for number in (1, 2):
        store.append(bucket(spark, number, 10, 20), "checkpoint", number)
    written = [file.stat().st_size for file in Path(store.path).glob("part=*/*.parquet")]
    assert store.size() == (sum(written), len(written))
    store.delete(store.delta_partitions())
    assert store.size() == (0, 0)


def test_deleting_a_part_deletes_its_messages_and_no_others(spark: SparkSession, store: BucketTable) -> None:
    store.append(bucket(spark, 1, 10), "checkpoint", 1)
    store.append(bucket(spark, 2, 20), "checkpoint", 2)
    first, second = sorted(parts(store))
    store.delete([chunks_of(first), metadata_of(first)])
    assert dues(store.chunks(0, 100, [first, second])) == [20]
    assert parts(store) == {second}


def test_a_bucket_that_two_processes_seal_at_the_same_time_is_stored_once(
    spark: SparkSession, store: BucketTable, tmp_path: Path
) -> None:
    begun, sealed = tmp_path / "begun", tmp_path / "sealed"

    rows = bucket(spark, 5, 10, 20)
    with ThreadPoolExecutor(1) as executor:
        later = executor.submit(store.append, written_late(rows, begun, sealed), "checkpoint", 5)
        assert_eventually(begun.exists, 60, "the later seal")
        BucketTable(spark, store.path).append(rows, "checkpoint", 5)
        sealed.touch()
        later.result()
    assert [(row["bucket"], row["count"]) for row in store.metadata()] == [(5, 2)]
    assert dues(store.chunks(0, 100, parts(store))) == [10, 20]
    assert store.newest_of("checkpoint") == 5
    assert store.newest_version() == 1


@pytest.mark.thorough
def test_a_table_of_an_earlier_version_gains_the_columns_of_this_one(spark: SparkSession, tmp_path: Path) -> None:
    store = BucketTable(spark, str(tmp_path / "buckets"))
    earlier = pa.schema([field for field in STORED_SCHEMA if field.name != "name"])
    store.create(from_arrow_schema(earlier))
    store.append(bucket(spark, 1, 100, 200).drop("name"), "checkpoint", 1)
    store.create(from_arrow_schema(STORED_SCHEMA))
    store.append(bucket(spark, 2, 300), "checkpoint", 2)
    assert dues(store.chunks(0, 1_000, parts(store))) == [100, 200, 300]
    version = store.newest_version()
    store.create(from_arrow_schema(STORED_SCHEMA))
    assert store.newest_version() == version, "once"
