"""A storage that belongs to one application is of no use to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable
from conf.load import load_settings
from conf.settings import Settings
from streaming.storage.owner import OWNER, claim_storage


def _settings(path: Path, application_id: str) -> Settings:
    return load_settings(None, [f"storage.path={path}", f"application_id={application_id}"], environ={})


def test_the_storage_belongs_to_the_application_that_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    storage = tmp_path / "data"
    for _ in range(2):
        claim_storage(spark, _settings(storage, "orders"))
    before = {path.name: path.read_bytes() for path in storage.iterdir()}
    with pytest.raises(CheckpointMismatch, match="belongs to application orders, but application_id is bills"):
        claim_storage(spark, _settings(storage, "bills"))
    assert {path.name: path.read_bytes() for path in storage.iterdir()} == before
    claim_storage(spark, _settings(tmp_path / "other", "bills"))


@pytest.mark.parametrize("text", ["", "{}", "orders", '{"application_id": 5}', "null"])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_damaged_file_is_named_and_may_be_deleted(
    spark: SparkSession, tmp_path: Path, text: str, has_checksum: bool
) -> None:
    claim_storage(spark, _settings(tmp_path, "orders"))
    file, checksum = tmp_path / OWNER, tmp_path / f".{OWNER}.crc"
    file.write_text(text)
    if not has_checksum:
        checksum.unlink()
    with pytest.raises(CheckpointUnreadable, match="does not name the application"):
        claim_storage(spark, _settings(tmp_path, "orders"))
    file.unlink()
    checksum.unlink(missing_ok=True)
    claim_storage(spark, _settings(tmp_path, "orders"))
    assert "orders" in file.read_text()
