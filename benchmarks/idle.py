"""Idle: the CPU of a job that has nothing to do, and the duration of a batch that has nothing to do."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.aims import Figures, figure
from benchmarks.job import Application
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.stand import Stand
from benchmarks.waiting import say, wait_until

WARM_UP_S, MEASURED_S = 60.0, 60.0
DEFAULT, OFTEN = "default settings", "as often as it can"
# Without arrivals a batch begins every quarter of the horizon, at most: batches of a quarter of a second or more follow
# each other without a pause.
_OFTEN = ("clock.trigger=0ms", "clock.horizon=1s")
CORES, P50_S = 0.1, 0.45
_FEWEST, _PATIENCE_S = 5, 120.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Measure an idle job at the default settings, then one that begins batches as often as an idle job can."""
    default, first = _run(stand, stand.application("idle"), scale)
    often, second = _run(stand, stand.application("idle-often", *_OFTEN), scale)
    figures = {DEFAULT: first, OFTEN: second}
    series = {DEFAULT: [default], OFTEN: [often]}
    return Outcome("idle", "a job that has nothing to do", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: for the CPU of all processes of the job, and for a batch that has nothing to do."""
    return [
        Aim(f"cores of all processes, {DEFAULT}", figure(figures, DEFAULT, "cpu_job"), CORES),
        Aim(f"p50 from one batch's commit to the next, {OFTEN}", figure(figures, OFTEN, "p50_s"), P50_S, "s"),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw a histogram of the durations."""
    drawn, axes = figure_of(outcome)
    axes.hist([values for (values,) in outcome.series.values()], bins=30, label=list(outcome.series))
    axes.axvline(P50_S, color="grey", linestyle=":", label=f"aim for p50, {OFTEN}")
    axes.set(xlabel="s from one commit to the next", ylabel="batches")
    axes.legend()
    return drawn


def _run(stand: Stand, application: Application, scale: float) -> tuple[list[float], dict[str, Any]]:
    """Return the seconds between commits, and the figures of one run of the job."""
    job = stand.job(application)
    warm_up_s, measured_s = max(5.0, WARM_UP_S * scale), max(5.0, MEASURED_S * scale)
    say(f"{application.name}: {warm_up_s:.0f} s of warm-up, {measured_s:.0f} s")
    time.sleep(warm_up_s)
    start_s = time.time()
    end_s = start_s + measured_s

    def enough() -> bool:
        return time.time() >= end_s and len(job.batches.between(start_s, time.time())) >= _FEWEST

    wait_until(enough, measured_s + _PATIENCE_S, f"{_FEWEST} batches", job.check)
    batches, usage = job.batches.between(start_s, time.time()), job.usage.between(start_s, time.time())
    job.stop()
    between_commits_s = np.diff([batch.committed_s for batch in batches])
    figures = {
        "batches": len(batches),
        "p50_s": round(float(np.percentile(between_commits_s, 50)), 3),
        "p99_s": round(float(np.percentile(between_commits_s, 99)), 3),
        "mean_s": round(float(between_commits_s.mean()), 3),
        "start_s": round(job.start_s, 1),
        **usage,
    }
    return [round(float(span_s), 3) for span_s in between_commits_s], figures
