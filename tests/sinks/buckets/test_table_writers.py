"""The fence of a writer in the table of sealed buckets, on real Delta."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import ApplicationHeld
from sinks.buckets.bucket_table import BucketTable
from tests.eventually import assert_eventually
from tests.messages import some_batch_settings
from tests.streaming.sealed import sealed_rows, written_late

_TAKEN = "another process took over from checkpoint old while batch 5 was being sealed"


def append(store: BucketTable, writer_id: str, number: int) -> None:
    rows = sealed_rows(store.spark, number, [{"deliver_at_ms": 99, "offset": number}], some_batch_settings())
    store.append(rows, writer_id, number)


def buckets(store: BucketTable) -> list[int]:
    return sorted(row["bucket"] for row in store.metadata())


def test_what_a_writer_appends_after_its_fence_is_refused_and_other_writers_go_on(
    spark: SparkSession, store: BucketTable
) -> None:
    append(store, "old", 4)
    # The fence comes after the check of the lease.
    paused = BucketTable(spark, store.path, before_append=lambda: store.fence("old"))
    with pytest.raises(ApplicationHeld, match=_TAKEN):
        append(paused, "old", 5)
    append(store, "new", 6)
    assert buckets(store) == [4, 6]


def test_an_append_that_began_before_the_fence_is_refused(
    spark: SparkSession, store: BucketTable, tmp_path: Path
) -> None:
    begun, fenced = tmp_path / "begun", tmp_path / "fenced"

    rows = sealed_rows(spark, 5, [{"deliver_at_ms": 99}], some_batch_settings())
    with ThreadPoolExecutor(1) as executor:
        later = executor.submit(store.append, written_late(rows, begun, fenced), "old", 5)
        assert_eventually(begun.exists, 60, "the append")
        BucketTable(spark, store.path).fence("old")
        fenced.touch()
        with pytest.raises(ApplicationHeld, match=_TAKEN):
            later.result()
    assert buckets(store) == []


def test_a_fence_is_not_taken_for_a_batch(store: BucketTable) -> None:
    append(store, "old", 4)
    for _ in range(2):
        version = store.version()
        for writer_id in ("old", "never"):
            assert store.is_fenced(writer_id) == (version > 1)
            store.fence(writer_id)
        assert (store.newest_of("old"), store.newest_of("never")) == (4, None)
    # The second time there was nothing to do.
    assert store.version() == version


@pytest.mark.thorough
def test_a_fence_knows_the_newest_batch_of_a_writer_that_appends_meanwhile(store: BucketTable) -> None:
    def append_until_fenced() -> None:
        for number in range(1000):
            append(store, "old", number)

    with ThreadPoolExecutor(1) as executor:
        appending = executor.submit(append_until_fenced)
        assert_eventually(lambda: store.newest_of("old") is not None, 60, "an append")
        store.fence("old")
        with pytest.raises(ApplicationHeld):
            appending.result()
    # Each batch up to the newest one, and none after it.
    newest = store.newest_of("old")
    assert newest is not None
    assert buckets(store) == list(range(newest + 1))


@pytest.mark.thorough
def test_a_driver_that_seals_a_batch_after_another_has_sealed_later_ones_finds_out(store: BucketTable) -> None:
    append(store, "old", 5)
    append(store, "old", 5)
    append(store, "old", 6)
    with pytest.raises(ApplicationHeld, match=_TAKEN):
        append(store, "old", 5)
    assert buckets(store) == [5, 6]
