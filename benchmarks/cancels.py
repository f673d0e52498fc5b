"""Cancels: 10,000 a second against 10 million sealed messages, during a load that falls due meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import psutil

from benchmarks import feed
from benchmarks.aims import LATENESS_MS, Figures, fault_aims, figure, held_aim, ratio
from benchmarks.feed import Feed
from benchmarks.job import Application, Job
from benchmarks.lateness import LONGEST_S, SHORTEST_S
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, curve, run_through
from benchmarks.waiting import say

MESSAGES, SPREAD = 10_000_000, "48h"
REQUESTS_PER_S = 10_000
RATE, WARM_UP_S, LOAD_S, LEAST_S = 1_000, 60.0, 60.0, 15.0
CALM, ASKED = "calm", "asked"
# After the ingest, so that merges are not measured as well.
_SETTLE_S = 60.0
_TIMEOUT_S = 1200.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Seal messages; send a load through the job, without and with requests."""
    count = int(MESSAGES * scale)
    warm_up_s, load_s = (max(LEAST_S, full_s * scale) for full_s in (WARM_UP_S, LOAD_S))
    stand.topic("cancels-in", config=feed.TOPIC)
    application = stand.application("cancels")
    job = stand.job(application)
    _seal(stand, application, job, count)
    say(f"{_SETTLE_S:.0f} s to settle")
    time.sleep(_SETTLE_S)
    figures: dict[str, dict[str, Any]] = {}
    series = {}
    for number, case in enumerate((CALM, ASKED)):
        # Each case has its own message numbers, above the numbers of the sealed messages.
        traffic = Traffic(RATE, SHORTEST_S, LONGEST_S, warm_up_s, load_s, first=(number + 1) * MESSAGES)
        read = _bytes_read(job)
        asker = ask(stand, application, count, REQUESTS_PER_S, traffic.seconds) if case == ASKED else None
        lateness_ms, figures[case] = run_through(stand, application, job, traffic)
        figures[case]["jvm_mb_read_per_s"] = round((_bytes_read(job) - read) / 2**20 / traffic.seconds, 1)
        if asker is not None:
            printed, _ = asker.communicate(timeout=300)
            figures[case] |= json.loads(printed)
        series[case] = curve(lateness_ms)
    about = f"{REQUESTS_PER_S:,} requests/s against {count:,} sealed messages"
    return Outcome("cancels", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: each request has its answer soon, each message is cancelled, and the load notices nothing."""

    def of_calm(name: str) -> float | None:
        return ratio(figure(figures, ASKED, name), figure(figures, CALM, name))

    asked = figure(figures, ASKED, "asked")
    return [
        Aim("answers to requests", ratio(figure(figures, ASKED, "answered"), asked), 1.0, at_least=True),
        Aim("cancelled of those", ratio(figure(figures, ASKED, "cancelled"), asked), 1.0, at_least=True),
        Aim("from the last request to the last answer", figure(figures, ASKED, "last_answer_s"), 10.0, "s"),
        Aim("lateness p99, to that without requests", of_calm("p99_ms"), 1.3),
        Aim("memory, to that without requests", of_calm("mb_job"), 1.3),
        *(aim for case in (CALM, ASKED) for aim in (held_aim(figures, case), *fault_aims(figures, case))),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the lateness in both cases."""
    return lateness_figure(outcome, LATENESS_MS["p99"])


def _seal(stand: Stand, application: Application, job: Job, count: int) -> None:
    checkpoint = application.folder / "checkpoint"
    with Feed(stand.bootstrap, application.input, PARTITIONS, 0, count, checkpoint, SPREAD) as source:
        source.run_into(job, count, _TIMEOUT_S)


def ask(
    stand: Stand, application: Application, count: int, rate: int, seconds: float, topic: str | None = None
) -> subprocess.Popen[str]:
    """Start a process that requests to cancel `rate` of the first `count` messages a second (`benchmarks.asker`).

    They are in the input `topic`, by default the application's first one.
    """
    results = application.settings.results_topic
    arguments = (stand.bootstrap, topic or application.input, PARTITIONS, results, count, rate, seconds)
    command = [sys.executable, "-m", "benchmarks.asker", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _bytes_read(job: Job) -> int:
    """Return what the job's Java has read from files and sockets so far."""
    return sum(
        process.io_counters().read_chars
        for process in psutil.Process(job.pid).children(recursive=True)
        if process.name() == "java"
    )
