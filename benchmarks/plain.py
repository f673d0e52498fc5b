"""Plain: the time from publishing a message without a delay until a subscriber has it, compared with Kafka alone."""

from __future__ import annotations

from typing import Any

from benchmarks.aims import FAULTS, Figures, fault_aims, lateness_aims
from benchmarks.kafka_alone import CASE as KAFKA_ALONE
from benchmarks.kafka_alone import compare, kafka_alone
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, curve, run_through

LOAD_S, WARM_UP_S = 60.0, 60.0
# The rates, by case, and for each the reference.
RATES = {"100 messages/s": 100, "1,000 messages/s": 1_000}
LIMITS_MS = {"p50": 50.0, "p99": 150.0}
# A plain message is overdue when it is accepted, so that the contract has no order for it.
FAULTS_OF_PLAIN = tuple(name for name in FAULTS if name not in ("inversions", "out_of_order"))


def measure(stand: Stand, scale: float) -> Outcome:
    """Send plain messages through a job with nothing else to do, then through Kafka alone, at each rate."""
    figures: dict[str, dict[str, Any]] = {}
    series: dict[str, list[list[float]]] = {}
    for case, rate in RATES.items():
        traffic = Traffic(rate, 0.0, 0.0, max(5.0, WARM_UP_S * scale), max(5.0, LOAD_S * scale))
        application = stand.application(f"plain-{rate}")
        job = stand.job(application)
        lateness_ms, figures[case] = run_through(stand, application, job, traffic)
        job.stop()
        alone = f"{KAFKA_ALONE}, {case}"
        alone_ms, figures[alone] = kafka_alone(stand, traffic, f"alone-{rate}")
        compare(figures, (case,), alone)
        series |= {case: curve(lateness_ms), alone: curve(alone_ms)}
    return Outcome("plain", "messages without a delay", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: low percentiles, and no fault."""
    return [
        aim
        for case in RATES
        for aim in (
            *lateness_aims(figures, case, LIMITS_MS),
            *fault_aims(figures, case, names=FAULTS_OF_PLAIN),
        )
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a time."""
    return lateness_figure(outcome, LIMITS_MS["p99"])
