"""Merges of sealed buckets, on real Delta: what is visible before and after, and who may finish one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ApplicationHeld
from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.merge_commits import append_part, commit_merge, fence_merges, merge_token
from sinks.buckets.segment_figures import index_entries
from state.buckets.parts import MergeName, abandoned, chunks_of, metadata_of, sealed_part
from state.buckets.table_rows import described_segment
from tests.eventually import assert_eventually
from tests.sinks.buckets.bucket_rows import bucket, dues, parts
from tests.streaming.sealed import written_late


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


@pytest.mark.thorough
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
