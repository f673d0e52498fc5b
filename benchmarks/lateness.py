"""Lateness (time received minus due time) at 1,000 messages/s: with nothing or a million waiting, and of a cold job."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aims import LATENESS_MS, Figures, fault_aims, held_aim, lateness_aims
from benchmarks.kafka_alone import CASE as KAFKA_ALONE
from benchmarks.kafka_alone import compare, kafka_alone
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, curve, run_through
from benchmarks.waiting import say

RATE = 1000
LOAD_S, WARM_UP_S = 60.0, 60.0
SHORTEST_S, LONGEST_S = 3.0, 20.0
# A job that has just started needs some seconds for its first batch.
COLD_SHORTEST_S, COLD_P99_MS = 10.0, 100.0
WAITING, WAITING_FOR_S, WAITING_SPREAD_S = 1_000_000, 48 * 3600.0, 3600.0
INGEST_TIMEOUT_S = 900.0
NONE_WAITING, MANY_WAITING = "nothing else waiting", "1 million waiting"
COLD = "from the first second of a cold job"


def light_traffic(share: float, first: int = 0) -> Traffic:
    """Return the load of this benchmark. `share` shortens its times; `first` is the number of its first message."""
    return Traffic(RATE, SHORTEST_S, LONGEST_S, max(5.0, WARM_UP_S * share), max(5.0, LOAD_S * share), first)


def cold_traffic(share: float) -> Traffic:
    """Return the load of a cold job, which has no warm-up: every message counts."""
    return Traffic(RATE, COLD_SHORTEST_S, LONGEST_S, 0.0, max(5.0, LOAD_S * share))


def measure(stand: Stand, scale: float) -> Outcome:
    """Measure all cases, then the same load through Kafka alone."""
    figures, series = {}, {}
    for number, (case, waiting) in enumerate({NONE_WAITING: 0, MANY_WAITING: int(WAITING * scale)}.items()):
        lateness_ms, figures[case] = _case(stand, f"lateness-{number}", waiting, scale)
        series[case] = curve(lateness_ms)
    lateness_ms, figures[COLD] = _cold(stand, scale)
    series[COLD] = curve(lateness_ms)
    bare_ms, figures[KAFKA_ALONE] = kafka_alone(stand, light_traffic(scale))
    series[KAFKA_ALONE] = curve(bare_ms)
    compare(figures, (NONE_WAITING, MANY_WAITING, COLD))
    return Outcome("lateness", str(light_traffic(scale)), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: percentiles of lateness of a warm job and of a cold one, and no fault."""
    warm = [aim for case in (NONE_WAITING, MANY_WAITING) for aim in lateness_aims(figures, case, LATENESS_MS)]
    cold = lateness_aims(figures, COLD, {"p99": COLD_P99_MS})
    faults = [
        aim
        for case in (NONE_WAITING, MANY_WAITING, COLD)
        for aim in (*fault_aims(figures, case), held_aim(figures, case))
    ]
    return [*warm, *cold, *faults]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, LATENESS_MS["p99"])


def _case(stand: Stand, name: str, waiting: int, scale: float) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    application = stand.application(name)
    if waiting:
        say(f"{name}: publishing {waiting:,} messages due in 48 h")
        Publisher(stand.bootstrap, application.input, PARTITIONS).preload(
            far_loads(waiting, WAITING_FOR_S, WAITING_SPREAD_S), any_delay
        )
    job = stand.job(application)
    if waiting:
        job.wait_for_messages(waiting, INGEST_TIMEOUT_S)
    lateness_ms, measured = run_through(stand, application, job, light_traffic(scale))
    job.stop()
    return lateness_ms, {"waiting": waiting} | measured


def _cold(stand: Stand, scale: float) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    application = stand.application("lateness-cold")
    job = stand.job(application, start=False)
    lateness_ms, measured = run_through(stand, application, job, cold_traffic(scale), cold=True)
    job.stop()
    return lateness_ms, {"start_s": round(job.start_s, 1)} | measured
