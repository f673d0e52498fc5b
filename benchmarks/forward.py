"""Forward: how many messages/s one forwarder takes, through near log and release, and how punctual they are.

All messages are due within a few seconds. At each rate the forwarder either keeps up, so that it takes nearly all and
they come in time, or it leaves the rest to the batches.
"""

from __future__ import annotations

from typing import Any

from benchmarks.aims import Figures, fault_aims, figure, held_aim
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, curve, run_through

RATES = {f"{rate:,} messages/s": rate for rate in (1_000, 10_000, 20_000, 35_000, 50_000)}
SHORTEST_S, LONGEST_S = 0.5, 3.0
# At first Java compiles the broker's code, which takes a core for most of a minute.
FIRST_WARM_UP_S, WARM_UP_S, LOAD_S = 60.0, 10.0, 20.0
# A rate is sustained if forwarders take so many of the messages, so punctually.
LEAST_SHARE, P99_MS = 0.99, 50.0
SUSTAINED, LEAST_RATE = "sustained", 50_000


def measure(stand: Stand, scale: float) -> Outcome:
    """Send messages that are all near through a job with one forwarder, at rising rates."""
    application = stand.application("forward")
    job = stand.job(application)
    figures: dict[str, dict[str, Any]] = {}
    series: dict[str, list[list[float]]] = {}
    first, warm_up_s = 0, FIRST_WARM_UP_S
    for case, rate in RATES.items():
        traffic = Traffic(rate, SHORTEST_S, LONGEST_S, max(5.0, warm_up_s * scale), max(5.0, LOAD_S * scale), first)
        lateness_ms, figures[case] = run_through(stand, application, job, traffic)
        series[case] = curve(lateness_ms)
        first, warm_up_s = first + traffic.count, WARM_UP_S
    job.stop()
    figures[SUSTAINED] = {"messages_per_s": sustained(figures)}
    about = f"one forwarder, messages due after {SHORTEST_S:g}-{LONGEST_S:g} s"
    return Outcome("forward", about, aims_of(figures), figures, series)


def sustained(figures: Figures) -> int:
    """Return the largest rate up to which the forwarder took `LEAST_SHARE` of the messages, with a p99 of `P99_MS`."""
    most = 0
    for case, rate in RATES.items():
        share, p99_ms = figure(figures, case, "forwarded"), figure(figures, case, "p99_ms")
        if share is None or p99_ms is None or share < LEAST_SHARE or p99_ms > P99_MS:
            break
        most = rate
    return most


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: the sustained rate, and no fault at any rate."""
    rate = figure(figures, SUSTAINED, "messages_per_s")
    return [
        Aim("messages/s that one forwarder takes", rate, LEAST_RATE, at_least=True),
        *(aim for case in RATES for aim in fault_aims(figures, case)),
        held_aim(figures, next(iter(RATES))),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)
