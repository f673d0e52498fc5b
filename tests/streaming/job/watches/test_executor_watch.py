"""The watch for executors of the running batch."""

from __future__ import annotations

import pytest

from conf.errors import QueryFailed
from streaming.job.watches.executor_watch import ExecutorWatch


class _Cluster:
    """A cluster with so many executors, and a job that is in these steps, by a clock of its own."""

    def __init__(self) -> None:
        self.executors, self.steps, self.now_s = 2, {"state": 0.0}, 0.0
        self.watch = ExecutorWatch(lambda: self.executors, lambda: self.steps, 300.0, lambda: self.now_s)

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.watch.check()


def test_a_batch_without_executors_ends_the_job_after_the_limit() -> None:
    cluster = _Cluster()
    cluster.passes(1_000)
    cluster.executors = 0
    cluster.passes(300)
    with pytest.raises(QueryFailed, match=r"has had no executor for 3\d\d s.*start the job again"):
        cluster.passes(20)


def test_executors_that_come_in_time_and_an_idle_job_without_any_are_no_failure() -> None:
    cluster = _Cluster()
    for _ in range(3):
        cluster.executors = 0
        cluster.passes(290)
        cluster.executors = 1
        cluster.passes(20)
    cluster.executors, cluster.steps = 0, {}
    cluster.passes(2_000)
    # The time without a step does not count.
    cluster.steps = {"claims": 1.0}
    cluster.passes(290)
