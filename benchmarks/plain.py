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

RATE = 100
LOAD_S, WARM_UP_S = 60.0, 60.0
P50_MS = 500.0
CASE = "plain"
# A plain message is overdue when it is accepted, so that the contract has no order for it.
FAULTS_OF_PLAIN = tuple(name for name in FAULTS if name not in ("inversions", "out_of_order"))


def measure(stand: Stand, scale: float) -> Outcome:
    """Send plain messages through a job with nothing else to do, then through Kafka alone."""
    traffic = Traffic(RATE, 0.0, 0.0, max(5.0, WARM_UP_S * scale), max(5.0, LOAD_S * scale))
    application = stand.application("plain")
    job = stand.job(application)
    lateness_ms, measured = run_through(stand, application, job, traffic)
    job.stop()
    alone_ms, alone = kafka_alone(stand, traffic)
    figures = {CASE: measured, KAFKA_ALONE: alone}
    compare(figures, (CASE,))
    series = {CASE: curve(lateness_ms), KAFKA_ALONE: curve(alone_ms)}
    return Outcome("plain", str(traffic), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: a low median, and no fault."""
    return [
        *lateness_aims(figures, CASE, {"p50": P50_MS}),
        *fault_aims(figures, CASE, names=FAULTS_OF_PLAIN),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a time."""
    return lateness_figure(outcome, P50_MS, "aim for p50")
