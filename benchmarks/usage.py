"""Measures CPU and memory of the job's process tree by role, and separately of the broker, the load and the rest."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from benchmarks.release_processes import is_forwarder, is_release
from benchmarks.watch import Watch

_SAMPLE_S = 0.5
# Memory is read in every fourth sample only: reading a JVM's memory map stops it for milliseconds.
_MEMORY_EVERY = 4
BROKER = "broker"
# The benchmark itself: its publishers, subscribers and reference producers.
LOAD = "load"
_RELEASE = "release"
_FORWARD = "forward"
_WORKERS = "workers"
_EXECUTORS = "executors"
# The role of a process of a cluster, by a word of its command line. It is not a child of the driver.
_ON_A_CLUSTER = {
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": _EXECUTORS,
    "streaming.spark.worker_daemon": _WORKERS,
}
# All other processes of the machine, which disturb a measurement.
_ELSE = "elsewhere"
NOT_THE_JOB = (BROKER, LOAD)


@dataclass(frozen=True)
class Memory:
    """Bytes by role at one instant (epoch s). `rss` counts shared pages in each process, `pss` once in total."""

    at_s: float
    rss: dict[str, int]
    pss: dict[str, int]


@dataclass(frozen=True)
class Sample:
    """CPU seconds by role up to one instant (epoch s), and the memory if it was measured."""

    at_s: float
    cpu_s: dict[str, float]
    memory: Memory | None


class UsageWatch(Watch):
    """Samples the job's processes by role: `driver` (Python), `jvm`, `workers` (Python), `release`, `forward`.

    `pid` is the job's driver, or None without a job. The process `broker_pid` is the role `broker`. This process's own
    tree is the role `load`, except processes that work for the job: release processes, forwarders, and the executors of
    a cluster that it has started (`executors`, with Python `workers`). It is a thread, and a context manager that
    starts and stops the thread.
    """

    def __init__(self, pid: int | None, broker_pid: int, orphans: Iterable[psutil.Process] = ()) -> None:
        """`orphans` are release processes and forwarders of the job that an earlier driver has started."""
        super().__init__("usage-watch")
        self._own, self._broker = psutil.Process(), psutil.Process(broker_pid)
        self._root = None if pid is None else psutil.Process(pid)
        self._orphans = orphans
        # Role and CPU seconds of each process when last seen. Ended processes stay, so that their usage counts.
        self._cpu_s: dict[psutil.Process, tuple[str, float]] = {}
        self._samples: list[Sample] = []

    def run(self) -> None:
        """Take samples until `stop`, and a last one after it."""
        number = 0
        while True:
            self._samples.append(self._sample(with_memory=number % _MEMORY_EVERY == 0))
            if self._ended.is_set():
                return
            number += 1
            self._ended.wait(_SAMPLE_S)

    @property
    def samples(self) -> list[Sample]:
        """All samples up to now."""
        return list(self._samples)

    def between(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return `usage_of` the samples around [start_s, end_s] epoch s."""
        return usage_of(self._samples_around(start_s, end_s))

    def whole(self) -> dict[str, float]:
        """Return `usage_of` all samples."""
        return usage_of(self.samples)

    def memory_between(self, start_s: float, end_s: float) -> list[Memory]:
        """Return the memory samples within [start_s, end_s] epoch s, including the broker's."""
        samples = [sample.memory for sample in self.samples if sample.memory]
        return [memory for memory in samples if start_s <= memory.at_s <= end_s]

    def _samples_around(self, start_s: float, end_s: float) -> list[Sample]:
        """Return the samples from the last one before the window to the first one after it."""
        samples = self.samples
        at_s = [sample.at_s for sample in samples]
        return samples[max(0, bisect_right(at_s, start_s) - 1) : bisect_left(at_s, end_s) + 1]

    def _sample(self, with_memory: bool) -> Sample:
        rss: dict[str, int] = defaultdict(int)
        pss: dict[str, int] = defaultdict(int)
        for role, process in self._processes():
            try:
                times = process.cpu_times()
                # A process that the list of the job's has missed once is still the job's.
                known = self._cpu_s.get(process, (role, 0.0))[0]
                self._cpu_s[process] = (known if role == LOAD else role), times.user + times.system
                if with_memory and role != LOAD:
                    # The proportional set size too, because forked workers share most of their pages.
                    memory = process.memory_full_info()
                    rss[role] += memory.rss
                    pss[role] += memory.pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        cpu: dict[str, float] = defaultdict(float)
        for role, used in self._cpu_s.values():
            cpu[role] += used
        everything = psutil.cpu_times()
        idle = everything.idle + getattr(everything, "iowait", 0.0)
        # `user` includes `guest` already.
        guests = getattr(everything, "guest", 0.0) + getattr(everything, "guest_nice", 0.0)
        cpu[_ELSE] = sum(everything) - idle - guests
        now_s = time.time()
        return Sample(now_s, dict(cpu), Memory(now_s, dict(rss), dict(pss)) if with_memory else None)

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        # List the job's processes last: one that it starts between the two lists must not count as the load.
        everything = [self._own, *self._own.children(recursive=True)]
        job = [] if self._root is None else job_processes(self._root)
        job += [(_role_of(process), process) for process in self._orphans]
        known = {process for _, process in job} | {self._broker}
        rest = [process for process in everything if process not in known]
        return [
            *job,
            (BROKER, self._broker),
            *((_own_role_of(process) or LOAD, process) for process in rest),
        ]


def usage_of(samples: list[Sample]) -> dict[str, float]:
    """Return by role the cores used between the first and the last sample, and the largest memory in MB.

    Returns nothing if there are fewer than two samples. `cpu_elsewhere` is the CPU that no role used.
    """
    if len(samples) < 2:
        return {}
    first, last = samples[0], samples[-1]
    cpu = {
        role: (used - first.cpu_s.get(role, 0.0)) / (last.at_s - first.at_s)
        for role, used in sorted(last.cpu_s.items())
    }
    # The samples have the CPU of the whole machine.
    cpu[_ELSE] -= sum(used for role, used in cpu.items() if role != _ELSE)
    of_job = [used for role, used in cpu.items() if role not in (*NOT_THE_JOB, _ELSE)]
    memory = [sample.memory.pss for sample in samples if sample.memory]
    roles = sorted({role for sample in memory for role in sample})
    peaks = {f"mb_{role}": round(max(at.get(role, 0) for at in memory) / 2**20, 1) for role in roles}
    totals = [job_total(at) for at in memory]
    return {
        **{f"cpu_{role}": round(used, 3) for role, used in cpu.items()},
        **({"cpu_job": round(sum(of_job), 3)} if of_job else {}),
        **peaks,
        **({"mb_job": round(max(totals) / 2**20, 1)} if of_job and totals else {}),
    }


def job_total(sizes: Mapping[str, int]) -> int:
    """Return the sum of `sizes`, which are by role, over the roles of the job."""
    return sum(size for role, size in sizes.items() if role not in NOT_THE_JOB)


def job_processes(root: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Return the processes of a job by role; `root` is its driver."""
    try:
        children = [(_role_of(child), child) for child in root.children(recursive=True)]
    except psutil.NoSuchProcess:
        children = []
    return [("driver", root), *children]


def _role_of(process: psutil.Process) -> str:
    try:
        is_java = process.name() == "java"
    except psutil.NoSuchProcess:
        is_java = False
    return "jvm" if is_java else _own_role_of(process) or _WORKERS


def _own_role_of(process: psutil.Process) -> str | None:
    """Return the role of a release process, a forwarder, or a process of an executor; None for any other process."""
    if is_release(process):
        return _RELEASE
    if is_forwarder(process):
        return _FORWARD
    try:
        line = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return next((role for word, role in _ON_A_CLUSTER.items() if word in line), None)
