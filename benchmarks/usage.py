"""What the job costs: CPU and memory of its process tree by role, and the broker's apart."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass

import psutil

_SAMPLE_S = 0.5
# Reading a JVM's memory map holds it up for milliseconds.
_MEMORY_EVERY = 4
BROKER = "broker"
# The rest of the machine: the benchmark itself, and whatever makes a figure worth less.
_ELSE = "elsewhere"


@dataclass(frozen=True)
class Memory:
    """Bytes by role at one instant (epoch s). What processes share counts for each in `rss`, and once in `pss`."""

    at_s: float
    rss: dict[str, int]
    pss: dict[str, int]


@dataclass(frozen=True)
class _Sample:
    at_s: float
    cpu_s: dict[str, float]
    memory: Memory | None


class UsageWatch(threading.Thread):
    """Samples the tree of `pid`: `driver` (Python), `jvm`, `workers` (Python); and the process `broker_pid`."""

    def __init__(self, pid: int, broker_pid: int) -> None:
        super().__init__(daemon=True, name="usage-watch")
        self._root, self._broker = psutil.Process(pid), psutil.Process(broker_pid)
        # CPU seconds of each process when last seen: what has ended keeps what it used.
        self._cpu_s: dict[tuple[str, psutil.Process], float] = {}
        self._samples: list[_Sample] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until `stop`."""
        number = 0
        while not self._ended.wait(_SAMPLE_S):
            self._samples.append(self._sample(with_memory=number % _MEMORY_EVERY == 0))
            number += 1

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        self.join()

    def between(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return CPU seconds a second and the largest memory in MB, by role, within [start_s, end_s] epoch s."""
        samples = self._samples_between(start_s, end_s)
        if len(samples) < 2:
            return {}
        first, last = samples[0], samples[-1]
        cpu = {
            f"cpu_{role}": round((used - first.cpu_s.get(role, 0.0)) / (last.at_s - first.at_s), 3)
            for role, used in sorted(last.cpu_s.items())
        }
        # Sampled as the whole machine's.
        cpu[f"cpu_{_ELSE}"] = round(2 * cpu[f"cpu_{_ELSE}"] - sum(cpu.values()), 3)
        cpu["cpu_job"] = round(sum(used for name, used in cpu.items() if name[4:] not in (BROKER, _ELSE)), 3)
        memory = [sample.memory.pss for sample in samples if sample.memory]
        roles = sorted({role for sample in memory for role in sample})
        peaks = {f"mb_{role}": round(max(at.get(role, 0) for at in memory) / 2**20, 1) for role in roles}
        totals = [sum(size for role, size in at.items() if role != BROKER) for at in memory]
        return cpu | peaks | ({"mb_job": round(max(totals) / 2**20, 1)} if totals else {})

    def memory_between(self, start_s: float, end_s: float) -> list[Memory]:
        """Return the memory samples within [start_s, end_s] epoch s, the broker's among them."""
        return [sample.memory for sample in self._samples_between(start_s, end_s) if sample.memory]

    def _samples_between(self, start_s: float, end_s: float) -> list[_Sample]:
        return [sample for sample in list(self._samples) if start_s <= sample.at_s <= end_s]

    def _sample(self, with_memory: bool) -> _Sample:
        rss: dict[str, int] = defaultdict(int)
        pss: dict[str, int] = defaultdict(int)
        for role, process in self._processes():
            try:
                times = process.cpu_times()
                self._cpu_s[role, process] = times.user + times.system
                if with_memory:
                    # The proportional set as well: forked workers share most of their pages.
                    memory = process.memory_full_info()
                    rss[role] += memory.rss
                    pss[role] += memory.pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        cpu: dict[str, float] = defaultdict(float)
        for (role, _), used in self._cpu_s.items():
            cpu[role] += used
        everything = psutil.cpu_times()
        idle = everything.idle + getattr(everything, "iowait", 0.0)
        # `guest` is in `user` already.
        guests = getattr(everything, "guest", 0.0) + getattr(everything, "guest_nice", 0.0)
        cpu[_ELSE] = sum(everything) - idle - guests
        now_s = time.time()
        return _Sample(now_s, dict(cpu), Memory(now_s, dict(rss), dict(pss)) if with_memory else None)

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        try:
            children = self._root.children(recursive=True)
            found = [("jvm" if child.name() == "java" else "workers", child) for child in children]
        except psutil.NoSuchProcess:
            found = []
        return [("driver", self._root), (BROKER, self._broker), *found]
