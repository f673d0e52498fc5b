"""A driver that was cut off while it uploaded an entry of the table's log, where an upload replaces a file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sinks.buckets.bucket_table import BucketTable
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

_BATCH_SETTINGS = some_batch_settings()


def seal(store: BucketTable, number: int) -> None:
    """Seal a bucket with one message."""
    seal_messages(store, number, [{"deliver_at_ms": 1_000 + number, "offset": number}], _BATCH_SETTINGS)


def counts(spark: SparkSession, storage: Path) -> dict[int, int]:
    """Return the number of messages by bucket that a process finds which starts now."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    found: dict[int, int] = {}
    for row in BucketTable(spark, str(storage / "buckets")).metadata():
        found[row["bucket"]] = found.get(row["bucket"], 0) + row["count"]
    return found


class StalledUpload:
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
        """Let the entry replace the one of its number."""
        self.entry.write_text(self._text)
        # Hadoop's checksum of a local file. An object store has no such file.
        self.entry.with_name(f".{self.entry.name}.crc").unlink(missing_ok=True)
