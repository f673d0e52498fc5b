"""The watch keeps the committed batches after Spark has deleted them, and through changes of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.record import Published
from tests.eventually import assert_eventually
from tests.streaming.judge.checkpoints import begin, commit, plan, point_to


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[CheckpointWatch]:
    """A watch that begins before there is a checkpoint."""
    with CheckpointWatch(tmp_path) as watch:
        yield watch


def _from_ms(watch: CheckpointWatch, *offsets: int) -> list[int | None]:
    acceptance = watch.acceptance()
    return [acceptance.in_order_from_ms(Published(f"in/0/{offset}", 0, None, b"", (), "out")) for offset in offsets]


def test_a_batch_counts_once_it_is_committed_even_after_one_that_read_nothing(
    watch: CheckpointWatch, folder: Path
) -> None:
    assert _from_ms(watch, 0) == [None]
    begin(folder, "a")
    plan(folder, 0, {})
    commit(folder, 0, 50)
    plan(folder, 1, {"in": {"0": 4}})
    assert _from_ms(watch, 0) == [None]
    commit(folder, 1, 100)
    plan(folder, 2, {"in": {"0": 9}})
    commit(folder, 2, 200)
    assert _from_ms(watch, 0, 3, 4, 8, 9) == [1_100, 1_100, 1_200, 1_200, None]


def test_batches_are_seen_before_spark_deletes_them(watch: CheckpointWatch, folder: Path) -> None:
    begin(folder, "a")
    for batch_id in range(3):
        plan(folder, batch_id, {"in": {"0": batch_id + 1}})
        commit(folder, batch_id, 100 * batch_id)
        # Only the watch's thread reads the files: the test does not ask for the acceptance meanwhile.
        assert_eventually(lambda: watch.seen == batch_id + 1)  # noqa: B023
        (folder / "offsets" / str(batch_id)).unlink()
        (folder / "commits" / str(batch_id)).unlink()
    assert _from_ms(watch, 0, 1, 2) == [0, 1_100, 1_200]


def test_a_replacing_checkpoint_continues_and_the_first_is_remembered(watch: CheckpointWatch, folder: Path) -> None:
    begin(folder, "a")
    plan(folder, 0, {"in": {"0": 5}})
    commit(folder, 0, 100)
    assert _from_ms(watch, 4) == [0]
    folder = folder.with_name("checkpoint-2")
    begin(folder, "b", cutoff_ms=300, offsets={"in": {"0": 7}})
    assert _from_ms(watch, 4, 5) == [0, None]
    point_to(folder, 2)
    plan(folder, 0, {"in": {"0": 8}})
    commit(folder, 0, 350)
    plan(folder, 1, {"in": {"0": 9}})
    commit(folder, 1, 400)
    assert _from_ms(watch, 4, 5, 6, 7, 8) == [0, 300, 300, 300, 1_400]


def test_a_log_that_cannot_be_read_is_an_error_for_the_caller(watch: CheckpointWatch, folder: Path) -> None:
    begin(folder, "a")
    (folder / "offsets" / "0").write_text("v1\n{}\n{nonsense\n")
    commit(folder, 0, 100)
    with pytest.raises(ValueError, match="Expecting property name"):
        watch.acceptance()
