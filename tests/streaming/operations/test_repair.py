"""A repair writes nothing to the table without --skip, and nothing to an older copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, UsageError
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from state.buckets.table_rows import STORED_SCHEMA
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.switch_over import writer_of_birth
from streaming.operations.repair import _repair
from tests.streaming.crashed_holder import lease_after_a_crash, must_fence
from tests.streaming.stalled_upload import seal

ORIGIN = CheckpointOrigin("two", 2, 1, first_bucket=1)


@pytest.fixture
def settings(replaceable: Settings) -> Settings:
    """Settings of an application with a checkpoint, in a storage where files can be replaced."""
    announce_origin(replaceable, ORIGIN)
    return replaceable


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> BucketTable:
    """A table with one bucket, from before the checkpoint began."""
    store = BucketTable(spark, str(tmp_path / "buckets"))
    store.create(from_arrow_schema(STORED_SCHEMA))
    seal(store, 0)
    return store


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    """The lease, as after a crash."""
    with closing(lease_after_a_crash(settings, "repair")) as lease:
        yield lease


def files_of(storage: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()}


def test_a_repair_writes_only_with_skip_and_not_to_an_older_table_before_a_rebuild(
    spark: SparkSession, settings: Settings, store: BucketTable, lease: HeldLease, repair_options: None, tmp_path: Path
) -> None:
    """The newest table may be put back. On S3, the next start would put a copy of its log over an entry of that one."""
    # It is a copy of an entry that the newest table has.
    copy = tmp_path / "log-copies" / f"{store.version() + 1:020d}.json"
    copy.parent.mkdir()
    copy.touch()
    before = files_of(tmp_path)
    assert not _repair(spark, settings, False, tmp_path / "report.json", lease).corruption.files
    with pytest.raises(CheckpointMismatch, match=r"is older than the checkpoint two, so it lacks messages"):
        _repair(spark, settings, True, tmp_path / "report.json", lease)
    assert files_of(tmp_path) == before
    assert must_fence(settings, lease)
    # As a rebuild does that begins with the copy.
    copy.unlink()
    store.fence(ORIGIN.checkpoint)
    later = copy.with_name(f"{store.version() + 9:020d}.json")
    later.touch()
    _repair(spark, settings, True, tmp_path / "report.json", lease)
    assert not later.exists(), "the job goes on without that entry"
    assert not must_fence(settings, lease)


def test_a_repair_without_a_table_writes_nothing(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    copy = tmp_path / "log-copies" / f"{7:020d}.json"
    copy.parent.mkdir()
    copy.touch()
    before = files_of(tmp_path)
    for skip in (False, True):
        with pytest.raises(UsageError, match="there is no table of sealed buckets"):
            _repair(spark, settings, skip, tmp_path / "report.json", lease)
    assert files_of(tmp_path) == before


def test_a_repair_of_the_newest_table_fences_earlier_processes(
    spark: SparkSession, settings: Settings, store: BucketTable, lease: HeldLease, repair_options: None, tmp_path: Path
) -> None:
    store.fence(writer_of_birth(ORIGIN.checkpoint))
    _repair(spark, settings, True, tmp_path / "report.json", lease)
    assert not must_fence(settings, lease)
