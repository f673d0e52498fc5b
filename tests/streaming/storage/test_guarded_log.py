"""The table's log against a driver that was cut off within an upload, on a file system where files are replaced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import LogEntryReplaced
from sinks.bucket_table import BucketTable
from state.buckets.table_rows import STORED_SCHEMA
from streaming.storage.guarded_log import GuardedLog
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

BATCH_SETTINGS = some_batch_settings()


def seal(store: BucketTable, number: int) -> None:
    seal_messages(store, number, [{"deliver_at_ms": 1_000 + number, "offset": number}], BATCH_SETTINGS)


def counts(spark: SparkSession, storage: Path) -> dict[int, int]:
    """Return the number of messages by bucket that a process finds which starts now."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    found: dict[int, int] = {}
    for row in BucketTable(spark, str(storage / "buckets")).metadata():
        found[row["bucket"]] = found.get(row["bucket"], 0) + row["count"]
    return found


class Stalled:
    """The upload of a driver that had sealed bucket 1, and was cut off before the entry was there."""

    def __init__(self, spark: SparkSession, storage: Path, elsewhere: Path) -> None:
        shutil.copytree(storage / "buckets", elsewhere / "buckets")
        driver = BucketTable(spark, str(elsewhere / "buckets"))
        seal(driver, 1)
        name = f"_delta_log/{driver.newest_version():020d}.json"
        shutil.copytree(elsewhere / "buckets", storage / "buckets", dirs_exist_ok=True, ignore=lambda folder, names: (
            names if folder.endswith("_delta_log") else []
        ))  # fmt: skip
        self._text = (elsewhere / "buckets" / name).read_text()
        self.entry = storage / "buckets" / name

    def arrives(self) -> None:
        self.entry.write_text(self._text)
        # Hadoop's checksum of a local file. An object store has none.
        self.entry.with_name(f".{self.entry.name}.crc").unlink(missing_ok=True)


def test_an_upload_that_arrives_after_a_takeover_is_undone_before_anything_is_handed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    store = BucketTable(spark, str(storage / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    seal(store, 0)
    stalled = Stalled(spark, storage, tmp_path / "elsewhere")

    # The successor fences the merges of the driver before, and replays its batch.
    guard = GuardedLog(spark, str(storage), needed=True)
    guard.restore()
    found = store.newest_version()
    store.fence_merges(2)
    guard.keep(found, store.version())
    guard.check()
    seal(store, 1)
    guard.check()
    stalled.arrives()
    assert counts(spark, storage) == {0: 1, 1: 2}, "what it does without a guard"
    with pytest.raises(LogEntryReplaced, match=f"{stalled.entry.name} in .* was replaced"):
        guard.check()
    guard.check()
    assert counts(spark, storage) == {0: 1, 1: 1}

    # And if the successor has died before it could look.
    stalled.arrives()
    GuardedLog(spark, str(storage), needed=True).restore()
    assert counts(spark, storage) == {0: 1, 1: 1}
    # Once Delta has cleaned the log, there is nothing to guard.
    for entry in (storage / "buckets" / "_delta_log").glob("*.json"):
        entry.unlink()
    GuardedLog(spark, str(storage), needed=True).restore()
    assert list((storage / "log-copies").glob("*.json")) == []


def test_where_no_file_can_be_replaced_nothing_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    store = BucketTable(spark, str(tmp_path / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    guard = GuardedLog(spark, str(tmp_path), needed=False)
    guard.restore()
    guard.keep(0, store.version())
    guard.check()
    assert not (tmp_path / "log-copies").exists()
