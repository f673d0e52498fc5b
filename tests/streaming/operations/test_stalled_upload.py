"""Rescale and rebuild against a driver that was cut off within an upload to the table's log (S3)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import LogEntryReplaced
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.switch_over import rest_bucket
from streaming.operations import rebuild, rescale
from streaming.storage import guarded_log
from tests.streaming.crashed_holder import lease_after_a_crash, must_fence
from tests.streaming.stalled_upload import StalledUpload, counts, seal

ORIGIN = CheckpointOrigin("one", 1, 2)


@pytest.fixture
def settings(replaceable: Settings) -> Settings:
    """Settings of an application with a checkpoint, in a storage where files can be replaced."""
    announce_origin(replaceable, ORIGIN)
    return replaceable


@pytest.fixture
def store(spark: SparkSession, empty_table: Path, tmp_path: Path) -> BucketTable:
    """The table with one bucket."""
    shutil.copytree(empty_table, tmp_path / "buckets")
    store = BucketTable(spark, str(tmp_path / "buckets"))
    seal(store, 0)
    return store


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    """The lease, as after a crash."""
    with closing(lease_after_a_crash(settings, "rescale")) as lease:
        assert must_fence(settings, lease)
        yield lease
        assert not must_fence(settings, lease), "a rescale and a rebuild note the fence"


def _arriving(stalled: StalledUpload, step: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        stalled.arrives()
        return step(*arguments)

    return run


def test_an_upload_that_arrives_during_a_rescale_is_undone_before_the_switch_over(
    spark: SparkSession,
    settings: Settings,
    store: BucketTable,
    lease: HeldLease,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    checkpoint.initialize(ORIGIN)
    checkpoint.retire()
    stalled = StalledUpload(spark, tmp_path, tmp_path / "elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(rescale, "drain", _arriving(stalled, rescale.drain))
        with pytest.raises(LogEntryReplaced, match=stalled.entry.name):
            rescale._rescale(spark, settings, 3, lease)
    assert counts(spark, tmp_path) == {0: 1}
    assert rescale._rescale(spark, settings, 3, lease).after == 3
    stalled.arrives()
    guarded_log.guarded_log(spark, settings).restore(store)
    assert counts(spark, tmp_path) == {0: 1}


@pytest.mark.thorough
def test_an_upload_that_arrives_while_a_rebuild_reads_the_table_is_undone_before_the_rest_is_sealed(
    spark: SparkSession,
    settings: Settings,
    store: BucketTable,
    lease: HeldLease,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = Checkpoint(spark, str(tmp_path / "checkpoint"))
    stalled = StalledUpload(spark, tmp_path, tmp_path / "elsewhere")
    monkeypatch.setattr(rebuild, "overdue_in_table", _arriving(stalled, rebuild.overdue_in_table))
    with pytest.raises(LogEntryReplaced, match=stalled.entry.name):
        rebuild._rebuild(store, settings, current, 0, lease)
    assert rest_bucket(store, ORIGIN.checkpoint) is None
    assert counts(spark, tmp_path) == {0: 1}
