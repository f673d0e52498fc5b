"""Endurance: three hours at 1,000 messages/s with the default options: memory, handles, threads and compiled code."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks.aims import Figures, fault_aims, figure, held_aim, ratio
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, run_through
from benchmarks.usage import job_processes, job_total
from benchmarks.watch import Watch

RATE = 1000
# Most messages wait in buckets, which are sealed, merged and deleted all the time.
SHORTEST_S, LONGEST_S = 3.0, 300.0
WARM_UP_S, LOAD_S = 3600.0, 7200.0
CASE = "1,000 messages/s"
# The most growth from the hour before to the last hour.
MOST_GROWTH = 1.1
_SAMPLE_S = 30.0
# The heap is measured once in this many samples. Java collects all garbage for it, which stops it for half a second.
_HEAP_SAMPLES = 10
_CODE = re.compile(r"size=\d+Kb used=(\d+)Kb")
_LIVE = re.compile(r"^Total +\d+ +(\d+)$", re.MULTILINE)
_COMPARED = ("memory_mb", "handles", "threads", "code_mb", "heap_mb")


@dataclass(frozen=True)
class Sample:
    """The resources that the job holds at one instant (epoch s), by name."""

    at_s: float
    held: Mapping[str, float]


def measure(stand: Stand, scale: float) -> Outcome:
    """Run the load, and compare what the job holds in the last third of the time with the third before."""
    traffic = Traffic(RATE, SHORTEST_S, LONGEST_S, max(20.0, WARM_UP_S * scale), max(40.0, LOAD_S * scale))
    application = stand.application("endurance")
    job = stand.job(application)
    begun_s = time.time()
    with _HandleWatch(job.pid) as watch:
        _, measured = run_through(stand, application, job, traffic)
    ended_s = begun_s + traffic.seconds
    memory = job.usage.memory_between(begun_s, ended_s)
    samples = [*watch.samples, *(Sample(each.at_s, {"memory_mb": job_total(each.pss) / 2**20}) for each in memory)]
    job.stop()
    figures = {CASE: measured | growth(samples, begun_s, ended_s)}
    return Outcome("endurance", str(traffic), aims_of(figures), figures, _series(samples, begun_s))


def growth(samples: Sequence[Sample], begun_s: float, ended_s: float) -> dict[str, float]:
    """Return what the job held in the second and in the last third of the time, by name and third."""
    thirds = np.linspace(begun_s, ended_s, 4)
    figures = {}
    for name in _COMPARED:
        for third, start_s, end_s in (("before", thirds[1], thirds[2]), ("last", thirds[2], thirds[3])):
            held = [sample.held[name] for sample in samples if name in sample.held and start_s <= sample.at_s < end_s]
            if held:
                figures[f"{name}_{third}"] = round(max(held), 1)
    return figures


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: nothing grows, and no fault."""
    return [
        *(
            Aim(
                f"{name} of the last third, of that of the third before",
                ratio(figure(figures, CASE, f"{name}_last"), figure(figures, CASE, f"{name}_before")),
                MOST_GROWTH,
            )
            for name in _COMPARED
        ),
        *fault_aims(figures, CASE),
        held_aim(figures, CASE),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw what the job holds over time, as a share of the most."""
    drawn, axes = figure_of(outcome)
    for name, (minutes, held) in outcome.series.items():
        axes.plot(minutes, np.array(held) / max(held), label=f"{name}, at most {max(held):,.0f}")
    axes.set(xlabel="minutes", ylabel="of the most", ylim=(0, None))
    axes.legend()
    return drawn


def _series(samples: Sequence[Sample], begun_s: float) -> dict[str, list[list[float]]]:
    series = {}
    for name in _COMPARED:
        own = [sample for sample in samples if name in sample.held]
        # One for each sample interval: memory is read more often.
        kept = {int((sample.at_s - begun_s) / _SAMPLE_S): sample for sample in own}.values()
        if kept:
            series[name] = [
                [round((sample.at_s - begun_s) / 60, 1) for sample in kept],
                [round(sample.held[name], 1) for sample in kept],
            ]
    return series


class _HandleWatch(Watch):
    """Samples open handles and threads of the job's processes, and the compiled code and the live heap of its Java.

    Java is asked through `jcmd`, which is in a JDK and not in a JRE. Without it the figures are missing.
    """

    def __init__(self, pid: int) -> None:
        super().__init__("handle-watch")
        self._root = psutil.Process(pid)
        self._jcmd = shutil.which("jcmd")
        self.samples: list[Sample] = []

    def run(self) -> None:
        """Take samples until the end."""
        while not self._ended.wait(_SAMPLE_S):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        held = {"handles": 0.0, "threads": 0.0}
        for role, process in job_processes(self._root):
            try:
                held["handles"] += process.num_fds()
                held["threads"] += process.num_threads()
            except psutil.NoSuchProcess:
                continue
            if role == "jvm" and self._jcmd:
                held["code_mb"] = self._asked(process.pid, "Compiler.codecache", _CODE) / 2**10
                if len(self.samples) % _HEAP_SAMPLES == 0:
                    held["heap_mb"] = self._asked(process.pid, "GC.class_histogram", _LIVE) / 2**20
        return Sample(time.time(), held)

    def _asked(self, pid: int, question: str, answered: re.Pattern[str]) -> int:
        """Return the sum of the numbers in Java's answer."""
        assert self._jcmd is not None
        answer = subprocess.run([self._jcmd, str(pid), question], capture_output=True, text=True, check=False)
        return sum(map(int, answered.findall(answer.stdout)))
