"""Damage to the log of the table of sealed buckets: every reader gets an error in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.load import load_settings
from sinks.buckets.bucket_table import BucketTable
from state.buckets.table_rows import STORED_SCHEMA
from streaming.storage.failures import translate_storage_errors
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a checkpoint in its log, and entries after it."""
    store = BucketTable(spark, str(tmp_path_factory.mktemp("table") / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    spark.sql(f"ALTER TABLE delta.`{store.path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    for number in (1, 2, 3):
        seal_messages(store, number, [{"deliver_at_ms": number, "offset": number}], some_batch_settings())
    return Path(store.path)


def lose(log: Path, pattern: str) -> None:
    files = [file for file in log.glob(pattern) if not file.name.startswith(".")]
    assert files
    for file in files:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def cut_short(log: Path, pattern: str) -> None:
    (file,) = (file for file in log.glob(pattern) if not file.name.startswith("."))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    # Delete Hadoop's checksum file. An object store has no such file.
    file.with_name(f".{file.name}.crc").unlink()


@pytest.mark.parametrize(
    ("corruption", "patterns", "named"),
    [
        (lose, ["*.checkpoint.parquet", "*[0-2].json"], "_delta_log"),
        (cut_short, ["*.checkpoint.parquet"], "0003.checkpoint.parquet is missing or damaged"),
        (cut_short, ["*4.json"], "0004.json is missing or damaged"),
    ],
)
def test_a_log_with_a_missing_or_damaged_entry_is_named(
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    corruption: Callable[[Path, str], None],
    patterns: list[str],
    named: str,
) -> None:
    shutil.copytree(table, tmp_path / "buckets")
    for pattern in patterns:
        corruption(tmp_path / "buckets" / "_delta_log", pattern)
    settings = load_settings(None, [f"storage.path={tmp_path}"], environ={})
    with pytest.raises(BucketUnreadable) as raised, translate_storage_errors(settings):
        BucketTable(spark, str(tmp_path / "buckets")).metadata()
    assert "cannot read the log of the table of sealed buckets: " in str(raised.value)
    assert named in str(raised.value)
    assert f"Put {tmp_path}/buckets/_delta_log back from a backup" in str(raised.value)


def test_a_log_without_its_checkpoint_is_read_from_its_entries(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    shutil.copytree(table, tmp_path / "buckets")
    lose(tmp_path / "buckets" / "_delta_log", "*.checkpoint.parquet")
    assert len(BucketTable(spark, str(tmp_path / "buckets")).metadata()) == 3
