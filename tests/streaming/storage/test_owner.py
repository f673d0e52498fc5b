"""A storage that belongs to one application of a Kafka cluster is of no use to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable
from conf.load import load_settings
from conf.settings import Settings
from sinks.topics.topic_ids import cluster_id
from streaming.storage.owner import OWNER, claim_storage
from tests.conftest import MakeSettings


def _settings(path: Path, application_id: str) -> Settings:
    return load_settings(None, [f"storage.path={path}", f"application_id={application_id}"], environ={})


def test_the_storage_belongs_to_the_application_that_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    storage = tmp_path / "data"
    for _ in range(2):
        claim_storage(spark, _settings(storage, "orders"), "A")
    before = {path.name: path.read_bytes() for path in storage.iterdir()}
    with pytest.raises(CheckpointMismatch, match="belongs to application orders, but application_id is bills"):
        claim_storage(spark, _settings(storage, "bills"), "A")
    assert {path.name: path.read_bytes() for path in storage.iterdir()} == before
    claim_storage(spark, _settings(tmp_path / "other", "bills"), "A")


@pytest.mark.parametrize("text", ["", "{}", "orders", '{"application_id": 5}', "null"])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_damaged_file_is_named_and_may_be_deleted(
    spark: SparkSession, tmp_path: Path, text: str, has_checksum: bool
) -> None:
    claim_storage(spark, _settings(tmp_path, "orders"), "A")
    file, checksum = tmp_path / OWNER, tmp_path / f".{OWNER}.crc"
    file.write_text(text)
    if not has_checksum:
        checksum.unlink()
    with pytest.raises(CheckpointUnreadable, match="does not name the application"):
        claim_storage(spark, _settings(tmp_path, "orders"), "A")
    file.unlink()
    checksum.unlink(missing_ok=True)
    claim_storage(spark, _settings(tmp_path, "orders"), "A")
    assert "orders" in file.read_text()


def test_the_storage_belongs_to_the_cluster_that_comes_first(
    spark: SparkSession, tmp_path: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings(f"storage.path={tmp_path}")
    present = cluster_id(settings)
    assert present == cluster_id(settings) is not None
    # Brokers that do not tell their cluster are of any.
    for each in (present, None, present):
        claim_storage(spark, settings, each)
    before = (tmp_path / OWNER).read_bytes()
    with pytest.raises(CheckpointMismatch, match=f"of Kafka cluster {present}, but .* names cluster B"):
        claim_storage(spark, settings, "B")
    assert (tmp_path / OWNER).read_bytes() == before
