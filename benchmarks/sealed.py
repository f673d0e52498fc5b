"""Sealed: a steady 10,000 messages/s with delays so long that messages pass through sealed buckets."""

from __future__ import annotations

from typing import Any

from benchmarks.aims import P99_MS, Figures, delivery_aims, figure, ratio
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, curve, run_through

RATE, LEAST_RATE = 10_000, 1_000
SHORTEST_S, LONGEST_S = 30.0, 120.0
LOAD_S, SHORTEST_LOAD_S = 120.0, 20.0
CASE = "sealed"


def sealed_traffic(share: float, first: int = 0) -> Traffic:
    """Return the load. `share` reduces its rate and its duration; `first` is the number of its first message.

    The warm-up lasts for the longest delay: after it, as many messages fall due as arrive.
    """
    rate = max(LEAST_RATE, int(RATE * share))
    return Traffic(rate, SHORTEST_S, LONGEST_S, LONGEST_S, max(SHORTEST_LOAD_S, LOAD_S * share), first)


def measure(stand: Stand, scale: float) -> Outcome:
    """Send the load through a job with nothing else waiting."""
    traffic = sealed_traffic(scale)
    # At a lower rate the job must still seal the same share.
    fewer = [f"bucket.max_messages={2 * traffic.rate}"] if scale < 1 else []
    application = stand.application("sealed", *fewer)
    job = stand.job(application)
    lateness_ms, measured = run_through(stand, application, job, traffic)
    job.stop()
    figures = {CASE: {"sealed": job.sealed(), **measured}}
    return Outcome("sealed", str(traffic), aims_of(figures), figures, {CASE: curve(lateness_ms)})


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: most messages were sealed; the usual limits of lateness hold, without a fault."""
    sealed = ratio(figure(figures, CASE, "sealed"), figure(figures, CASE, "published"))
    return [
        Aim("share of the messages that were sealed", sealed, 0.5, at_least=True),
        *delivery_aims(figures, CASE),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)
