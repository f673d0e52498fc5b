"""Sealed: a steady 10,000 messages/s with delays so long that messages pass through sealed buckets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.aims import Figures, fault_aims, figure, held_aim, lateness_aims, ratio
from benchmarks.kafka_alone import CASE as KAFKA_ALONE
from benchmarks.kafka_alone import compare, kafka_alone
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, curve, run_through

RATE, LEAST_RATE = 10_000, 1_000
SHORTEST_S, LONGEST_S = 30.0, 120.0
LOAD_S, SHORTEST_LOAD_S = 120.0, 20.0
P99_MS = 50.0
# Of the messages. Only those with a longer delay than the horizon, two thirds of them, wait in buckets.
LEAST_SEALED = 0.3
# By how much a batch may leave more unread at the end than at the beginning.
MOST_GROWN_S = 1.0
CASE = "sealed"
_ALONE_WARM_UP_S = 10.0


def sealed_traffic(share: float, first: int = 0) -> Traffic:
    """Return the load. `share` reduces its rate and its duration; `first` is the number of its first message.

    The warm-up lasts for the longest delay: after it, as many messages fall due as arrive.
    """
    rate = max(LEAST_RATE, int(RATE * share))
    return Traffic(rate, SHORTEST_S, LONGEST_S, LONGEST_S, max(SHORTEST_LOAD_S, LOAD_S * share), first)


def measure(stand: Stand, scale: float) -> Outcome:
    """Send the load through a job with nothing else waiting, then at the same rate through Kafka alone."""
    traffic = sealed_traffic(scale)
    # At a lower rate the job must still seal the same share.
    fewer = [f"bucket.max_messages={2 * traffic.rate}"] if scale < 1 else []
    application = stand.application("sealed", *fewer)
    job = stand.job(application)
    lateness_ms, measured = run_through(stand, application, job, traffic)
    job.stop()
    alone_ms, alone = kafka_alone(stand, replace(traffic, warm_up_s=_ALONE_WARM_UP_S))
    figures = {CASE: {"sealed": job.sealed(), **measured}, KAFKA_ALONE: alone}
    compare(figures, (CASE,))
    series = {CASE: curve(lateness_ms), KAFKA_ALONE: curve(alone_ms)}
    return Outcome("sealed", str(traffic), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: enough messages were sealed, and came on time; the job kept up; no fault."""
    sealed = ratio(figure(figures, CASE, "sealed"), figure(figures, CASE, "published"))
    return [
        Aim("share of the messages that were sealed", sealed, LEAST_SEALED, at_least=True),
        *lateness_aims(figures, CASE, {"p99": P99_MS}),
        Aim("backlog that a batch leaves, grown by", figure(figures, CASE, "backlog_grown_s"), MOST_GROWN_S, "s"),
        *fault_aims(figures, CASE),
        held_aim(figures, CASE),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)
