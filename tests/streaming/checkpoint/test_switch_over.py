"""Which checkpoint is the current one, before and after a switch that was cut off, and in the earlier layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable, InjectedFailure
from conf.failpoints import VARIABLE
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import read_markers
from streaming.checkpoint import current
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.current import current_checkpoint, make_current
from streaming.checkpoint.recovery import recover
from streaming.checkpoint.switch_over import switch_over
from streaming.storage.paths import local_checkpoint


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    with closing(HeldLease(settings, "rescale")) as lease:
        yield lease


@pytest.fixture
def first(spark: SparkSession, settings: Settings, lease: HeldLease) -> Checkpoint:
    """A job's first checkpoint, without a batch."""
    return recover(spark, settings, False, lease).checkpoint


def announced(settings: Settings) -> set[str]:
    return {marker.batch.origin.checkpoint for marker in read_markers(settings) if marker is not None}


@pytest.mark.thorough
def test_without_a_pointer_the_checkpoint_is_where_it_always_was(
    first: Checkpoint, spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    assert current_checkpoint(spark, settings).path == first.path == str(tmp_path / "checkpoint")
    assert local_checkpoint(tmp_path) == tmp_path / "checkpoint"
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("point", "is_announced", "is_current"),
    [
        pytest.param("successor-initialized", False, False, marks=pytest.mark.thorough),
        ("successor-born", True, False),
        pytest.param("switched-over", True, True, marks=pytest.mark.thorough),
    ],
)
def test_a_switch_that_was_cut_off_is_done_by_the_next_try_and_no_checkpoint_moves(
    first: Checkpoint, spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, point: str, is_announced: bool, is_current: bool,
) -> None:  # fmt: skip
    second = replace(first.origin, checkpoint="two", generation=2)
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    with pytest.raises(InjectedFailure):
        switch_over(settings, second, spark, lease)
    monkeypatch.delenv(VARIABLE)
    assert ("two" in announced(settings)) == is_announced
    assert (local_checkpoint(tmp_path).name == "checkpoint-2") == is_current
    again = replace(second, checkpoint="again")
    if is_current:
        with pytest.raises(CheckpointMismatch, match="cannot become the current checkpoint"):
            switch_over(settings, again, spark, lease)
    else:
        switch_over(settings, again, spark, lease)
        assert current_checkpoint(spark, settings).origin == again
        assert announced(settings) == {"again"}
    assert local_checkpoint(tmp_path) == Path(current_checkpoint(spark, settings).path) == tmp_path / "checkpoint-2"
    assert json.loads((tmp_path / "checkpoints" / "2").read_text()) == {"folder": "checkpoint-2"}
    assert Checkpoint(spark, str(tmp_path / "checkpoint")).origin == first.origin


@pytest.mark.thorough
def test_a_process_that_comes_late_does_not_take_a_newer_pointer_back(
    first: Checkpoint, spark: SparkSession, settings: Settings, lease: HeldLease
) -> None:
    switch_over(settings, replace(first.origin, checkpoint="three", generation=3), spark, lease)
    late = Checkpoint(spark, f"{first.path}-2")
    late.initialize(replace(first.origin, checkpoint="two", generation=2))
    with pytest.raises(CheckpointMismatch, match="Another command has replaced the checkpoint meanwhile"):
        make_current(spark, settings, late)
    assert current_checkpoint(spark, settings).origin.checkpoint == "three"


def test_a_pointer_that_was_written_meanwhile_is_not_replaced(
    first: Checkpoint, spark: SparkSession, settings: Settings, lease: HeldLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_over(settings, replace(first.origin, checkpoint="two", generation=2), spark, lease)
    late = Checkpoint(spark, f"{first.path}-late")
    late.initialize(replace(first.origin, checkpoint="late", generation=2))
    monkeypatch.setattr(current, "newest_generation", lambda *_: 1)
    with pytest.raises(CheckpointMismatch, match="Another command has replaced the checkpoint meanwhile"):
        make_current(spark, settings, late)
    assert current_checkpoint(spark, settings).origin.checkpoint == "two"


def test_a_checkpoint_that_has_run_is_not_started_again_after_its_pointer_was_lost(
    first: Checkpoint, spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    second = replace(first.origin, checkpoint="two", generation=2)
    switch_over(settings, second, spark, lease)
    offsets = tmp_path / "checkpoint-2" / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text('v1\n{"batchTimestampMs": 20, "batchWatermarkMs": 10}\n{"in":{"0":7}}')
    (tmp_path / "checkpoints" / "2").unlink()
    with pytest.raises(CheckpointMismatch, match=r"checkpoint-2 has already run.*Restore the file \S+/checkpoints/2"):
        switch_over(settings, replace(second, checkpoint="again"), spark, lease)
    # Nor does a job go on from the one before.
    with pytest.raises(CheckpointMismatch, match="was replaced by two"):
        recover(spark, settings, False, lease)


@pytest.mark.thorough
def test_a_damaged_pointer_is_an_error_and_not_taken_for_none(
    first: Checkpoint, spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    switch_over(settings, replace(first.origin, checkpoint="two", generation=2), spark, lease)
    (tmp_path / "checkpoints" / "2").write_text("")
    (tmp_path / "checkpoints" / ".2.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointUnreadable, match="checkpoints/2 is damaged"):
        current_checkpoint(spark, settings)
