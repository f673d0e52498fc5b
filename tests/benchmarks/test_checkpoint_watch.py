"""Which batches of a checkpoint accepted messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.waiting import wait_until

TOPIC = "in"


def commit(checkpoint: Path, batch_id: int, ends: dict[str, int]) -> None:
    """Write the two log files of a batch as Spark does."""
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchTimestampMs": 0}), json.dumps({TOPIC: ends})]
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))
    (checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")


@pytest.fixture
def watch(tmp_path: Path) -> CheckpointWatch:
    """A watch that has seen four batches; the second and the fourth accepted no message."""
    checkpoint_watch = CheckpointWatch(tmp_path, TOPIC)
    for batch_id, end in enumerate((10, 10, 25, 25)):
        commit(tmp_path, batch_id, {"0": end, "1": end})
    checkpoint_watch.start()
    wait_until(lambda: len(checkpoint_watch.batches) == 4, 30, "four batches", lambda: None)
    checkpoint_watch.stop()
    return checkpoint_watch


def test_a_batch_counts_if_it_advanced_the_input(watch: CheckpointWatch) -> None:
    assert [(batch.batch_id, batch.end) for batch in watch.taking_in()] == [(0, 20), (2, 50)]


@pytest.mark.parametrize(("after", "batch_ids"), [(0, [0, 2]), (19, [0, 2]), (20, [2]), (50, [])])
def test_batches_up_to_the_given_offset_do_not_count(watch: CheckpointWatch, after: int, batch_ids: list[int]) -> None:
    assert [batch.batch_id for batch in watch.taking_in(after)] == batch_ids
