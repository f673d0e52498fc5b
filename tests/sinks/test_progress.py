"""The marker as a value. Reading it back from a broker belongs to the writer's tests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import CheckpointMismatch
from sinks.progress import Progress, committed_messages


@given(st.text(max_size=40), st.integers(0, 2**62), st.integers(0, 2**62))
@settings(max_examples=50, deadline=None)
def test_a_marker_is_read_as_it_was_written(checkpoint: str, batch_id: int, count: int) -> None:
    progress = Progress(checkpoint, batch_id, count)
    assert Progress.from_bytes(progress.to_bytes()) == progress


@pytest.mark.parametrize(
    "value",
    [
        b"", b"x", b"\xff", b"7", b"[]", b"[1, 2, 3]", b"null", b"{}", b'{"checkpoint": "c", "batch_id": 1}',
        b'{"checkpoint": "c", "batch_id": 1, "messages": 2, "more": 3}',
        b'{"checkpoint": "c", "batch_id": "1", "messages": 2}',
        b'{"checkpoint": "c", "batch_id": 1, "messages": null}',
    ],
)  # fmt: skip
def test_what_is_no_marker_is_refused(value: bytes) -> None:
    with pytest.raises(CheckpointMismatch, match="no marker of Delayline"):
        Progress.from_bytes(value)


@pytest.mark.parametrize(
    ("last", "skipped"),
    [
        (None, 0),
        (Progress("c", 6, 40), 0),
        (Progress("c", 7, 40), 40),
        (Progress("c", 7, 0), 0),
        # Another checkpoint's batches are other batches.
        (Progress("other", 7, 40), 0),
        (Progress("other", 99, 40), 0),
    ],
)
def test_a_replay_skips_what_its_own_batch_committed_and_nothing_else(last: Progress | None, skipped: int) -> None:
    assert committed_messages(last, "c", 7) == skipped


def test_a_checkpoint_older_than_what_is_delivered_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="batch 8 has been delivered, but the checkpoint is at batch 7"):
        committed_messages(Progress("c", 8, 0), "c", 7)
