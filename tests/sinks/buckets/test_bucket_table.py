"""The table of sealed buckets, on real Delta."""

from __future__ import annotations

import random
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import ApplicationHeld, BucketUnreadable, FormatMismatch
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import append_part, commit_merge, fence_merges, merge_token
from sinks.buckets.segment_figures import index_entries, slots
from state.buckets.parts import IS_METADATA, MergeName, abandoned, chunks_of, metadata_of, sealed_part
from state.buckets.segments import cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment, stored_rows
from state.message import decode_chunk, encode_chunk
from tests.eventually import assert_eventually
from tests.messages import messages, some_batch_settings
from tests.streaming.sealed import written_late

_HOUR = 3_600_000


def bucket(
    spark: SparkSession, number: int, *dues: int, value: bytes | None = None, bits: int = 10, **batch_settings: Any
) -> DataFrame:
    """Return the rows of a bucket with one message due at each of `dues`."""
    sealed = messages([{"deliver_at_ms": due, "offset": due, "value": value or b"%d" % due} for due in sorted(dues)])
    return _stored(spark, sealed, number, bits, **batch_settings)


def _stored(spark: SparkSession, sealed: pa.Table, number: int, bits: int = 10, **batch_settings: Any) -> DataFrame:
    """Return the rows of a bucket with the messages `sealed`."""
    segments = [
        {**asdict(segment), "chunk": encode_chunk(rows)}
        for segment, rows in cut(sealed, number, 0, some_batch_settings(**batch_settings))
    ]
    batches = stored_rows(bits)(iter(pa.Table.from_pylist(segments).to_batches()))
    rows = pa.Table.from_batches(batches, STORED_SCHEMA)
    return spark.createDataFrame(rows, from_arrow_schema(STORED_SCHEMA)).coalesce(1)


def dues(read: DataFrame) -> list[int]:
    chunks = [decode_chunk(bytes(row["chunk"])) for row in read.collect()]
    return sorted(due for chunk in chunks for due in chunk.column("deliver_at_ms").to_pylist())


def parts(store: BucketTable, version: int | None = None) -> set[str]:
    return {described_segment(row.asDict()).part for row in store.metadata(version)}


def merge(store: BucketTable, name: MergeName, number: int, *slices: DataFrame) -> None:
    """Merge the buckets that `name` covers: store `slices` as the new bucket's parts, and finish."""
    segments = [described_segment(row.asDict()) for row in store.metadata()]
    replaced = {segment.part for segment in segments if name.first <= segment.bucket <= name.last}
    for rows in slices:
        append_part(store, rows)
    commit_merge(store, name, replaced, number)


def slice_of(spark: SparkSession, name: MergeName, number: int, *dues: int) -> DataFrame:
    """Return the rows of a merged bucket's part with one message due at each of `dues`."""
    part = name.part(number)
    rows = bucket(spark, name.last, *dues)
    return rows.withColumn(
        "part", F.when(F.col("chunk").isNull(), F.lit(metadata_of(part))).otherwise(F.lit(chunks_of(part)))
    )


def test_a_bucket_is_stored_with_its_metadata_in_one_commit_and_only_once(
    spark: SparkSession, store: BucketTable
) -> None:
    rows = bucket(spark, 5, 10, 20, 2 * _HOUR, segment_max_messages=2)
    for _ in range(2):
        store.append(rows, "checkpoint", 5)
    metadata = store.metadata()
    assert sorted((row["bucket"], row["segment"], row["count"]) for row in metadata) == [(5, 0, 2), (5, 1, 1)]
    assert dues(store.chunks(0, 10 * _HOUR, parts(store))) == [10, 20, 2 * _HOUR]
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
    year = 365 * 24 * _HOUR
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


def test_a_merge_becomes_visible_in_one_commit_and_an_older_version_stays_readable(
    spark: SparkSession, store: BucketTable
) -> None:
    for number in (1, 2, 3):
        store.append(bucket(spark, number, 10 * number, 10 * number + 1), "checkpoint", number)
    before, old_parts = store.version(), parts(store)
    name = MergeName(1, 2, token=7)
    append_part(store, slice_of(spark, name, 0, 10, 11))
    append_part(store, slice_of(spark, name, 1, 20, 21))
    everything = [10, 11, 20, 21, 30, 31]
    new_parts = {name.part(0), name.part(1)}

    # A reader that asks for the parts of both gets the messages once.
    assert parts(store) == old_parts
    assert dues(store.chunks(0, 100, old_parts | new_parts)) == everything
    assert len(list(index_entries(store))) == len(store.files()) // 2 == 3
    commit_merge(store, name, [sealed_part(1), sealed_part(2)], 1)
    assert store.version() == before + 3
    assert parts(store) == new_parts | {sealed_part(3)}
    assert sorted((row["bucket"], row["count"]) for row in store.metadata()) == [(2, 2), (2, 2), (3, 2)]
    assert dues(store.chunks(0, 100, old_parts | new_parts)) == everything
    for version in (before, before + 2):
        assert parts(store, version) == old_parts
        assert dues(store.chunks(0, 100, old_parts | new_parts, version=version)) == everything
    assert dues(store.chunks(0, 100, old_parts | new_parts, buckets=[1], version=before)) == [10, 11]
    assert dues(store.chunks(0, 100, old_parts | new_parts, buckets=[1])) == []


@pytest.mark.thorough
def test_a_merged_bucket_is_replaced_whole_by_the_next_merge(spark: SparkSession, store: BucketTable) -> None:
    for number in (1, 2, 3):
        store.append(bucket(spark, number, 10 * number), "checkpoint", number)
    one, other = MergeName(1, 2, 7), MergeName(2, 3, 7)
    merge(store, one, 1, slice_of(spark, one, 0, 10), slice_of(spark, one, 1, 20))
    merge(store, other, 2, slice_of(spark, other, 0, 10, 20, 30))
    assert parts(store) == {other.part(0)}
    assert store.delta_partitions() == {chunks_of(other.part(0)), metadata_of(other.part(0)), other.live}
    assert dues(store.chunks(0, 100, parts(store))) == [10, 20, 30]


@pytest.mark.thorough
def test_nothing_of_an_abandoned_merge_is_read(spark: SparkSession, store: BucketTable) -> None:
    for number in (1, 2):
        store.append(bucket(spark, number, 10 * number), "checkpoint", number)
    name = MergeName(1, 2, 7)
    append_part(store, slice_of(spark, name, 0, 10))
    assert parts(store) == {sealed_part(1), sealed_part(2)}
    assert {file["part"] for file in store.files()} == {
        partition for part in parts(store) for partition in (chunks_of(part), metadata_of(part))
    }
    assert store.rows().count() == 4
    assert len(list(index_entries(store))) == 2
    left = abandoned(store.delta_partitions())
    assert left == {chunks_of(name.part(0)), metadata_of(name.part(0))}
    store.delete(left)
    assert abandoned(store.delta_partitions()) == set()
    assert dues(store.chunks(0, 100, parts(store))) == [10, 20]


def test_a_process_that_was_paused_while_another_took_over_cannot_finish_a_merge(
    spark: SparkSession, store: BucketTable
) -> None:
    for number in (1, 2):
        store.append(bucket(spark, number, 10 * number), "checkpoint", number)
    name = MergeName(1, 2, token=7)
    successor = BucketTable(spark, store.path)
    # The takeover happens after the check of the lease.
    earlier = BucketTable(spark, store.path, before_change=lambda: fence_merges(successor, 8))
    append_part(store, slice_of(spark, name, 0, 10, 20))
    with pytest.raises(ApplicationHeld, match="another process took over while buckets 1 to 2"):
        commit_merge(earlier, name, parts(store), 1)
    assert parts(store) == {sealed_part(1), sealed_part(2)}
    again = MergeName(1, 2, token=8)
    merge(successor, again, 1, slice_of(spark, again, 0, 10, 20))
    assert parts(store) == {again.part(0)}
    assert dues(store.chunks(0, 100, parts(store))) == [10, 20]


@pytest.mark.thorough
def test_merges_go_on_after_the_lease_topic_was_made_anew(spark: SparkSession, store: BucketTable) -> None:
    assert merge_token(store, 3) == 3
    fence_merges(store, 3)
    # The next holder of the lease, and the first one of a new lease topic.
    assert merge_token(store, 4) == 4
    assert merge_token(store, 1) == 4
    for number in (1, 2):
        store.append(bucket(spark, number, 10 * number), "checkpoint", number)
    name = MergeName(1, 2, merge_token(store, 1))
    merge(store, name, 1, slice_of(spark, name, 0, 10, 20))
    assert parts(store) == {name.part(0)}


@pytest.mark.thorough
def test_buckets_sealed_while_others_are_replaced_are_kept_and_nobody_waits(
    spark: SparkSession, store: BucketTable, tmp_path: Path
) -> None:
    for number in (1, 2):
        store.append(bucket(spark, number, 10 * number), "checkpoint", number)
    name = MergeName(1, 2, 7)
    append_part(store, slice_of(spark, name, 0, 10, 20))
    begun, sealed = tmp_path / "begun", tmp_path / "sealed"

    rows = slice_of(spark, name, 1, 21)
    with ThreadPoolExecutor(1) as executor:
        later = executor.submit(append_part, store, written_late(rows, begun, sealed))
        assert_eventually(begun.exists, 60, "the slice")
        for number in (3, 4):
            store.append(bucket(spark, number, 10 * number), "checkpoint", number)
        commit_merge(store, name, parts(store) - {sealed_part(3), sealed_part(4)}, 1)
        sealed.touch()
        later.result()
    assert sorted(row["bucket"] for row in store.metadata()) == [2, 2, 3, 4]
    assert dues(store.chunks(0, 1000, parts(store))) == [10, 20, 21, 30, 40]


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
def test_time_slots_are_those_of_the_segments_that_an_instant_falls_inside(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 10, 20, 30, bits=4, segment_max_messages=2), "checkpoint", 1)
    store.append(bucket(spark, 2, 15, 25, bits=3), "checkpoint", 2)

    def cut(*instants_ms: int, version: int | None = None) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in slots(store, instants_ms, version).collect())

    one, other = (1, 0, 0, 4, [0, 16], [1, 1]), (2, 0, 0, 3, [8, 24], [1, 1])
    assert cut(16) == cut(16, 20, 99) == [one, other]
    assert cut(11, 15) == [one]
    assert cut(25) == [other]
    assert cut(10, 26, 30) == []
    assert cut(16, version=store.version() - 1) == [one]


@pytest.mark.thorough
def test_the_offsets_are_not_read_with_the_time_slots(spark: SparkSession, store: BucketTable) -> None:
    # So far apart that each offset takes 10 bytes, in two time slots.
    instants = range(0, 50_000 * 70_000, 70_000)
    store.append(bucket(spark, 1, *instants, bits=31, segment_max_messages=50_000), "checkpoint", 1)
    offsets = sum(len(entry["offsets"]) for row in index_entries(store) for entry in row["index_entries"])
    assert offsets > 500_000
    # Delta's log and the file footers take about 80,000 bytes, whatever a query reads.
    assert _bytes_read(spark, slots(store, [10**9])) < offsets / 4


def test_messages_are_counted_by_topic_and_span_without_offsets(spark: SparkSession, store: BucketTable) -> None:
    def sealed(number: int, topics: str, *dues: int) -> DataFrame:
        rows = [{"deliver_at_ms": due, "offset": due, "topic": topic} for due, topic in zip(dues, topics, strict=True)]
        return _stored(spark, messages(rows), number, segment_max_messages=3)

    store.append(sealed(1, "aab" + "aac", 1, 2, 3, 10, 11, 5_000), "checkpoint", 1)
    store.append(sealed(2, "ab", 20, 21), "checkpoint", 2)
    store.append(sealed(3, "aa", 90_000, 3_600_000), "checkpoint", 3)
    spans = sorted(tuple(row) for row in store.counted_by_topic(["a", "b"], 10))
    assert [(topic, count) for topic, count, _, _ in spans] == [("a", 1), ("a", 1), ("a", 3), ("b", 1)]
    of_due = {10: 11, 90_000: 90_000, 3_600_000: 3_600_000}
    for _, _, first_ms, last_ms in spans[:3]:
        (due_ms,) = (due_ms for due_ms in of_due if first_ms <= due_ms <= last_ms)
        # A segment has an index as fine as its span.
        assert of_due[due_ms] <= last_ms < first_ms + 300_000
    assert [tuple(row[:2]) for row in store.counted_by_topic(["c", "d"], 0)] == [("c", 1)]


@pytest.mark.thorough
def test_the_bytes_read_depend_on_the_range_and_not_on_the_table(spark: SparkSession, store: BucketTable) -> None:
    # One file of 20 MB, 200 chunks in order of due time, and as much in another bucket.
    value = random.Random(1).randbytes(100_000)
    hour = {"segment_max_messages": 10}
    for start in (0, _HOUR):
        store.append(
            bucket(spark, start // _HOUR, *range(start, start + _HOUR, 18_000), value=value, **hour), "c", start
        )
    partitions = parts(store)
    whole = _bytes_read(spark, store.chunks(0, 2 * _HOUR, partitions))
    tenth = _bytes_read(spark, store.chunks(_HOUR, _HOUR + _HOUR // 10, partitions))
    hundredth = _bytes_read(spark, store.chunks(_HOUR, _HOUR + _HOUR // 100, partitions))
    metadata = _bytes_read(spark, spark.read.format("delta").load(store.path).where(IS_METADATA))
    assert whole > 2 * 200 * len(value)
    # The granularity is a row group of 1 MB.
    assert tenth < whole / 2 / 10 * 1.5 + 2**21
    assert hundredth < whole / 2 / 100 + 2**21
    assert metadata < whole / 100


def _bytes_read(spark: SparkSession, rows: DataFrame) -> int:
    """Run `rows` and return how many bytes its stages read from files, as Spark counts them."""
    spark.sparkContext.setJobGroup(uuid.uuid4().hex, "bytes read")
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    # Hadoop does not count bytes that Parquet reads by its vectored reads, as from Spark 4.1 on.
    spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
    rows.write.format("noop").mode("overwrite").save()
    spark.conf.unset("parquet.hadoop.vectored.io.enabled")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", cast(str, None))
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    store = context.statusStore()
    jobs = tracker.getJobIdsForGroup(group)
    infos = [tracker.getJobInfo(job) for job in jobs]
    stages = {stage for info in infos if info is not None for stage in info.stageIds}
    # A stage that was skipped has read nothing, and Spark forgets it before all others.
    known = [store.lastStageAttempt(stage) for stage in stages if tracker.getStageInfo(stage) is not None]
    ran = [stage for stage in known if str(stage.status()) == "COMPLETE"]
    assert len(ran) == sum(store.job(job).numCompletedStages() for job in jobs) > 0
    return sum(stage.inputBytes() for stage in ran)


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
