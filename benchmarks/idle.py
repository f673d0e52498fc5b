"""Idle: the duration of a trigger that has nothing to do, and the cost of a waiting job."""

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

WARM_UP_S, MEASURED_S = 20.0, 30.0
BACK_TO_BACK, DEFAULT = "one after the other", "default trigger"
P50_S = 0.45
_FEWEST, _PATIENCE_S = 5, 120.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Measure triggers without a pause between them, then with the default trigger interval."""
    application = stand.application("idle")
    back_to_back, first = _run(stand, application, scale, "clock.trigger=0ms")
    default, second = _run(stand, application, scale)
    figures = {BACK_TO_BACK: first, DEFAULT: second}
    series = {BACK_TO_BACK: [back_to_back], DEFAULT: [default]}
    return Outcome("idle", "triggers with nothing to do", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aim for a trigger that has nothing to do."""
    return [Aim("p50 of a trigger, one after the other", figure(figures, BACK_TO_BACK, "p50_s"), P50_S, "s")]


def draw(outcome: Outcome) -> Any:
    """Draw a histogram of the durations."""
    drawn, axes = figure_of(outcome)
    axes.hist([values for (values,) in outcome.series.values()], bins=30, label=list(outcome.series))
    axes.axvline(P50_S, color="grey", linestyle=":", label="aim")
    axes.set(xlabel="s from one commit to the next", ylabel="triggers")
    axes.legend()
    return drawn


def _run(stand: Stand, application: Application, scale: float, *overrides: str) -> tuple[list[float], dict[str, Any]]:
    """Return the seconds between commits, and the figures of one run of the job."""
    job = stand.job(application, *overrides)
    warm_up_s, measured_s = max(5.0, WARM_UP_S * scale), max(5.0, MEASURED_S * scale)
    say(f"idle {' '.join(overrides) or 'by default'}: {warm_up_s:.0f} s of warm-up, {measured_s:.0f} s")
    time.sleep(warm_up_s)
    start_s = time.time()
    end_s = start_s + measured_s

    def enough() -> bool:
        return time.time() >= end_s and len(job.batches.between(start_s, time.time())) >= _FEWEST

    wait_until(enough, measured_s + _PATIENCE_S, f"{_FEWEST} triggers", job.check)
    batches, usage = job.batches.between(start_s, time.time()), job.usage.between(start_s, time.time())
    job.stop()
    between_commits_s = np.diff([batch.committed_s for batch in batches])
    plan_to_commit_s = [batch.committed_s - batch.planned_s for batch in batches]
    figures = {
        "triggers": len(batches),
        "p50_s": round(float(np.percentile(between_commits_s, 50)), 3),
        "p99_s": round(float(np.percentile(between_commits_s, 99)), 3),
        "mean_s": round(float(between_commits_s.mean()), 3),
        "plan_to_commit_p50_s": round(float(np.percentile(plan_to_commit_s, 50)), 3),
        "start_s": round(job.start_s, 1),
        **usage,
    }
    return [round(float(span_s), 3) for span_s in between_commits_s], figures
