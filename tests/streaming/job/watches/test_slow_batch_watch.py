"""Warning of a step of a batch that lasts."""

from __future__ import annotations

import pytest

from streaming.job.watches.slow_batch_watch import SlowBatchWatch
from streaming.monitor.job_metrics import JobCounts


def test_each_step_that_lasts_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    running, now_s = {"state": 100.0}, [100.0]
    watch = SlowBatchWatch(lambda: running, lambda: now_s[0])

    def warned(at_s: float) -> list[str]:
        caplog.clear()
        now_s[0] = at_s
        watch.check()
        return [record.getMessage() for record in caplog.records]

    assert warned(159) == []
    assert warned(161) == ["the running batch has been in its step 'state' for 61 s"]
    assert warned(162) == warned(219) == []
    # The main thread may have been stopped meanwhile.
    assert warned(350) == ["the running batch has been in its step 'state' for 250 s"]
    assert warned(351) == []
    running.clear()
    assert warned(352) == []
    running["state"] = 340.0
    assert warned(399) == [], "the same step of another batch"
    assert warned(401) == ["the running batch has been in its step 'state' for 61 s"]


def test_a_step_runs_until_its_block_ends_or_raises() -> None:
    counts = JobCounts()
    with counts.timed("cancels"), counts.timed("seal"):
        assert counts.running.keys() == {"cancels", "seal"}
    assert counts.running == {}
    with pytest.raises(ValueError, match="once"), counts.timed("state"):
        raise ValueError("once")
    assert counts.running == {}
