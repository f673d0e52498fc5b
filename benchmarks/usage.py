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
class _Sample:
    at_s: float
    cpu_s: dict[str, float]
    memory_bytes: dict[str, int]


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
        samples = [sample for sample in list(self._samples) if start_s <= sample.at_s <= end_s]
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
        memory = [sample.memory_bytes for sample in samples if sample.memory_bytes]
        roles = sorted({role for sample in memory for role in sample})
        peaks = {f"mb_{role}": round(max(at.get(role, 0) for at in memory) / 2**20, 1) for role in roles}
        totals = [sum(size for role, size in at.items() if role != BROKER) for at in memory]
        return cpu | peaks | ({"mb_job": round(max(totals) / 2**20, 1)} if totals else {})

    def _sample(self, with_memory: bool) -> _Sample:
        memory: dict[str, int] = defaultdict(int)
        for role, process in self._processes():
            try:
                times = process.cpu_times()
                self._cpu_s[role, process] = times.user + times.system
                if with_memory:
                    # The proportional set: forked workers share most of their pages.
                    memory[role] += process.memory_full_info().pss
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
        return _Sample(time.time(), dict(cpu), dict(memory))

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        try:
            children = self._root.children(recursive=True)
            found = [("jvm" if child.name() == "java" else "workers", child) for child in children]
        except psutil.NoSuchProcess:
            found = []
        return [("driver", self._root), (BROKER, self._broker), *found]
