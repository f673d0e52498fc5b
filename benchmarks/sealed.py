"""Sealed: a steady 10,000 messages/s with delays so long that messages pass through sealed buckets.

Once with default settings, and once with buckets that are merged two at a time, so that merges never end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

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
# The least share of messages that are sealed. Only messages with a longer delay than the horizon, two thirds of all,
# wait in buckets.
LEAST_SEALED = 0.3
# How much more a batch may leave unread at the end than at the beginning.
MOST_GROWN_S = 1.0
CASE, MERGING = "sealed", "sealed, merging all the time"
_SETTINGS = {CASE: (), MERGING: ("bucket.fan_in=2",)}
# The lateness with continual merges, relative to the lateness without.
OF_DEFAULT = 1.5
_ALONE_WARM_UP_S = 10.0


def sealed_traffic(share: float, first: int = 0) -> Traffic:
    """Return the load. `share` reduces its rate and its duration; `first` is the number of its first message.

    The warm-up lasts for the longest delay. After it, messages fall due at the rate at which they arrive.
    """
    rate = max(LEAST_RATE, int(RATE * share))
    return Traffic(rate, SHORTEST_S, LONGEST_S, LONGEST_S, max(SHORTEST_LOAD_S, LOAD_S * share), first)


def measure(stand: Stand, scale: float) -> Outcome:
    """Send the load through a job with nothing else waiting, in both cases, then through Kafka alone."""
    traffic = sealed_traffic(scale)
    figures, series = {}, {}
    for number, case in enumerate(_SETTINGS):
        lateness_ms, figures[case] = _case(stand, f"sealed-{number}", traffic, case, scale)
        series[case] = curve(lateness_ms)
    alone_ms, figures[KAFKA_ALONE] = kafka_alone(stand, replace(traffic, warm_up_s=_ALONE_WARM_UP_S))
    compare(figures, tuple(_SETTINGS))
    series[KAFKA_ALONE] = curve(alone_ms)
    return Outcome("sealed", str(traffic), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: enough messages were sealed, and came on time; the job kept up; no fault; merges cost little."""
    to_default = ratio(figure(figures, MERGING, "p99_ms"), figure(figures, CASE, "p99_ms"))
    return [
        *(aim for case in _SETTINGS for aim in _aims_of(figures, case)),
        Aim("p99 with continual merges, of that without", to_default, OF_DEFAULT),
    ]


def _aims_of(figures: Figures, case: str) -> list[Aim]:
    sealed = ratio(figure(figures, case, "sealed"), figure(figures, case, "published"))
    grown_s = figure(figures, case, "backlog_grown_s")
    return [
        Aim(f"share of the messages that were sealed, {case}", sealed, LEAST_SEALED, at_least=True),
        *lateness_aims(figures, case, {"p99": P99_MS}),
        Aim(f"backlog that a batch leaves, grown by, {case}", grown_s, MOST_GROWN_S, "s"),
        *fault_aims(figures, case),
        held_aim(figures, case),
    ]


def _case(
    stand: Stand, name: str, traffic: Traffic, case: str, scale: float
) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    # At a lower rate the job must still seal the same share.
    fewer = [f"bucket.max_messages={2 * traffic.rate}"] if scale < 1 else []
    application = stand.application(name, *_SETTINGS[case], *fewer)
    job = stand.job(application)
    lateness_ms, measured = run_through(stand, application, job, traffic)
    job.stop()
    merges = job.log.count("merged buckets")
    return lateness_ms, {"sealed": job.sealed(), "merges": merges, **measured}


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)
