"""The contents of mutable buckets since before a start: when they are read, and what follows from an error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import DueRun
from streaming.job.watches import unchanged_buckets
from streaming.job.watches.unchanged_buckets import UnchangedBuckets
from streaming.monitor.estimate import MutableDues
from streaming.monitor.job_metrics import JobCounts
from tests.eventually import assert_eventually

_BOUNDS = {0: MutableDues([DueRun(5, 9, 4)], bytes=40)}


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_state_is_read_once_some_time_after_the_start_and_again_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, counts, read = _Clock(), JobCounts(), list[int]()

    def read_state(batch_id: int) -> Mapping[int, MutableDues]:
        read.append(batch_id)
        if len(read) == 1:
            raise OSError("the files are gone")
        return _BOUNDS

    unchanged = UnchangedBuckets(read_state, counts, clock)

    def check_until(count: int) -> bool:
        unchanged.check()
        return len(read) == count and unchanged._reading is None

    unchanged.check()
    clock.now_s += unchanged_buckets._AFTER_S
    unchanged.check()
    # No batch is committed yet.
    assert read == []
    counts.reported(7, mutable_buckets=1, lag={})
    assert_eventually(lambda: check_until(1), 30)
    assert "could not read the contents of mutable buckets; will try again: the files are gone" in caplog.text
    counts.reported(9, mutable_buckets=1, lag={})
    unchanged.check()
    assert read == [7]
    clock.now_s += unchanged_buckets._AGAIN_S
    assert_eventually(lambda: check_until(2), 30)
    assert counts.batch_of_unknown_state is None
    clock.now_s += unchanged_buckets._AGAIN_S
    unchanged.check()
    assert read == [7, 9]
    unchanged.close()


def test_nothing_is_read_if_batches_have_told_all() -> None:
    clock, counts, read = _Clock(), JobCounts(), list[int]()

    def read_state(batch_id: int) -> Mapping[int, MutableDues]:
        read.append(batch_id)
        return _BOUNDS

    unchanged = UnchangedBuckets(read_state, counts, clock)
    batch = PlannedBatch(0, clock_ms=1_000, cutoff_ms=2_000, offsets={})
    counts.batch_done(batch, {}, {}, 0, 0, _BOUNDS)
    counts.reported(0, mutable_buckets=1, lag={})
    clock.now_s += unchanged_buckets._AFTER_S
    unchanged.check()
    unchanged.close()
    assert read == []
    assert unchanged._reading is None
