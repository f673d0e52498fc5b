"""The table's log against a driver that was cut off within an upload, on a file system where files are replaced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import LogEntryReplaced
from sinks.buckets.bucket_table import BucketTable
from state.buckets.table_rows import STORED_SCHEMA
from streaming.storage.guarded_log import GuardedLog
from tests.streaming.stalled_upload import StalledUpload, counts, seal


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def store(spark: SparkSession, empty_table: Path, storage: Path) -> BucketTable:
    """A table with one sealed bucket."""
    shutil.copytree(empty_table, storage / "buckets")
    table = BucketTable(spark, str(storage / "buckets"))
    seal(table, 0)
    return table


def test_an_upload_that_arrives_after_a_takeover_is_undone_before_anything_is_staged(
    spark: SparkSession, storage: Path, store: BucketTable, tmp_path: Path
) -> None:
    stalled = StalledUpload(spark, storage, tmp_path / "elsewhere")

    # The successor fences the merges of the driver before, and replays its batch.
    guard = GuardedLog(spark, str(storage), needed=True)
    guard.restore(store)
    guard.take_over(store, 2)
    guard.check()
    seal(store, 1)
    guard.check()
    stalled.arrives()
    assert counts(spark, storage) == {0: 1, 1: 2}, "what it does without a guard"
    with pytest.raises(LogEntryReplaced, match=f"replaced {stalled.entry.name} in "):
        guard.check()
    guard.check()
    assert counts(spark, storage) == {0: 1, 1: 1}

    # And if the successor has died before it could look.
    stalled.arrives()
    later = GuardedLog(spark, str(storage), needed=True)
    later.restore(store)
    assert counts(spark, storage) == {0: 1, 1: 1}
    # And if the one after that had ended cleanly.
    stalled.arrives()
    with pytest.raises(LogEntryReplaced):
        later.check()
    assert counts(spark, storage) == {0: 1, 1: 1}
    # Once Delta has cleaned the log, there is nothing to guard.
    for entry in (storage / "buckets" / "_delta_log").glob("[0-9]*"):
        entry.unlink()
    GuardedLog(spark, str(storage), needed=True).restore(store)
    assert list((storage / "log-copies").glob("*.json")) == []


def test_an_upload_that_replaces_the_fence_before_it_is_kept_stays_and_the_next_process_builds_on_it(
    spark: SparkSession, storage: Path, store: BucketTable, tmp_path: Path
) -> None:
    stalled = StalledUpload(spark, storage, tmp_path / "elsewhere")

    class Interrupted(BucketTable):
        def overwrite(self, *arguments: Any) -> None:
            super().overwrite(*arguments)
            stalled.arrives()

    guard = GuardedLog(spark, str(storage), needed=True)
    guard.restore(store)
    with pytest.raises(LogEntryReplaced, match="with which this process takes over"):
        guard.take_over(Interrupted(spark, store.path), 2)
    assert counts(spark, storage) == {0: 1, 1: 1}

    successor = GuardedLog(spark, str(storage), needed=True)
    successor.restore(store)
    successor.take_over(store, 3)
    seal(store, 1)
    successor.check()
    assert counts(spark, storage) == {0: 1, 1: 1}


def test_the_newest_entry_is_put_back_if_it_is_lost_and_deleted_with_its_checksum_if_that_was_meant(
    spark: SparkSession, storage: Path, store: BucketTable
) -> None:
    guard = GuardedLog(spark, str(storage), needed=True)
    guard.restore(store)
    guard.take_over(store, 2)
    newest = max((storage / "buckets" / "_delta_log").glob("[0-9]*.json"))
    whole = newest.read_text()

    def lose(file: Path) -> None:
        file.unlink()
        # Hadoop's checksum of a local file. An object store has no such file.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    lose(newest)
    GuardedLog(spark, str(storage), needed=True).restore(store)
    assert newest.read_text() == whole
    # As the error of a lost entry says: without the checksum, the job goes on without it.
    lose(newest)
    lose(newest.with_suffix(".crc"))
    GuardedLog(spark, str(storage), needed=True).restore(store)
    assert not newest.exists()
    assert not (storage / "log-copies" / newest.name).exists()


def test_where_no_file_can_be_replaced_nothing_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    store = BucketTable(spark, str(tmp_path / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    guard = GuardedLog(spark, str(tmp_path), needed=False)
    guard.restore(store)
    guard.take_over(store, 2)
    guard.check()
    assert not (tmp_path / "log-copies").exists()
