"""The resources that a job used, computed from samples, and those that other processes used meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from benchmarks.usage import Memory, Sample, UsageWatch, usage_of
from benchmarks.waiting import wait_until

MB = 2**20


def sample(at_s: float, *, memory_mb: int = 0, **cpu_s: float) -> Sample:
    memory = {"jvm": memory_mb * MB, "driver": MB, "broker": 7 * MB}
    return Sample(at_s, cpu_s, Memory(at_s, memory, memory) if memory_mb else None)


def test_cpu_counts_from_the_first_sample_to_the_last() -> None:
    first = sample(100.0, driver=1.0, jvm=10.0, broker=5.0, load=2.0, elsewhere=1000.0)
    last = sample(110.0, driver=2.0, jvm=15.0, broker=6.0, load=4.0, elsewhere=1012.0)
    assert usage_of([first, sample(105.0, memory_mb=3, jvm=0.0), last]) == {
        "cpu_driver": 0.1, "cpu_jvm": 0.5, "cpu_broker": 0.1, "cpu_load": 0.2, "cpu_job": 0.6,
        # Out of 1.2 busy cores in total.
        "cpu_elsewhere": 0.3,
        "mb_jvm": 3.0, "mb_driver": 1.0, "mb_broker": 7.0, "mb_job": 4.0,
    }  # fmt: skip


def test_a_role_that_begins_later_counts_from_zero() -> None:
    usage = usage_of([sample(0.0, elsewhere=0.0), sample(2.0, workers=1.0, elsewhere=1.0)])
    assert usage == {"cpu_workers": 0.5, "cpu_job": 0.5, "cpu_elsewhere": 0.0}


def test_one_sample_gives_no_figures() -> None:
    assert usage_of([sample(0.0, elsewhere=0.0)]) == {}


def test_a_reference_without_a_job_has_no_cost_of_a_job() -> None:
    usage = usage_of([sample(0.0, load=0.0, elsewhere=0.0), sample(1.0, load=1.0, elsewhere=1.5)])
    assert usage == {"cpu_load": 1.0, "cpu_elsewhere": 0.5}


def test_processes_of_the_benchmark_count_as_load_except_the_broker_and_those_of_the_job() -> None:
    with ExitStack() as stack:
        job, broker, load = (stack.enter_context(busy_process()) for _ in range(3))
        stack.enter_context(busy_process("streaming.cli", "release", "--name", "a"))
        # As the workers of a cluster start them.
        stack.enter_context(busy_process("org.apache.spark.executor.CoarseGrainedExecutorBackend", "--cores", "1"))
        stack.enter_context(busy_process("streaming.spark.worker_daemon"))
        own_s = cpu_s(psutil.Process())
        with UsageWatch(job.pid, broker.pid) as watch:
            wait_until(lambda: min(map(cpu_s, (job, broker, load))) > 0.5, 60, "half a second of CPU", lambda: None)
            at_most_s = {"driver": cpu_s(job) + 2, "broker": cpu_s(broker) + 2}
    last = watch.samples[-1].cpu_s
    assert all(0.5 < last[role] < most for role, most in at_most_s.items())
    assert last["load"] > own_s + 0.5
    assert min(last[role] for role in ("release", "executors", "workers")) > 0


def test_a_process_of_the_job_that_is_missed_once_does_not_count_as_load_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with busy_process() as job, busy_process() as broker, UsageWatch(None, broker.pid) as watch:
        wait_until(lambda: cpu_s(job) > 0.5, 60, "half a second of CPU", lambda: None)
        watch._root = job
        wait_until(lambda: "driver" in watch.samples[-1].cpu_s, 60, "a sample", lambda: None)
        count, load_s = len(watch.samples), watch.samples[-1].cpu_s["load"]
        monkeypatch.setattr("benchmarks.usage.job_processes", lambda _: [])
        wait_until(lambda: cpu_s(job) > 2.5, 60, "two more seconds of CPU", lambda: None)
        wait_until(lambda: len(watch.samples) > count + 2, 60, "two samples", lambda: None)
        last = watch.samples[-1].cpu_s
        assert last["driver"] > 2
        assert last["load"] < load_s + 1.5


@contextmanager
def busy_process(*arguments: str) -> Iterator[psutil.Process]:
    """A process that computes until the context ends."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass", *arguments]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
