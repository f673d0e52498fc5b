"""Lateness (time received minus due time) at 1,000 messages/s: of a cold job, its driver killed, a million waiting.

One job goes through a minute that begins when it has just started, another minute, and one in which its driver is
killed and started again at once. All messages are due within `clock.horizon`, so that forwarders take them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aims import Figures, fault_aims, figure, held_aim, lateness_aims
from benchmarks.kafka_alone import CASE as KAFKA_ALONE
from benchmarks.kafka_alone import compare, kafka_alone
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import RunningTraffic, Traffic, curve, due_between, percentiles, run_through
from benchmarks.waiting import say

RATE = 1000
LOAD_S, WARM_UP_S = 60.0, 60.0
SHORTEST_S, LONGEST_S = 0.2, 20.0
WAITING, WAITING_FOR_S, WAITING_SPREAD_S = 1_000_000, 48 * 3600.0, 3600.0
INGEST_TIMEOUT_S = 900.0
FIRST, SECOND, KILLED = "first minute of a cold job", "second minute", "minute with the driver killed"
ALL, MANY_WAITING = "all three minutes", "1 million waiting"
LIMITS_MS = {"p50": 15.0, "p99": 40.0, "p99.9": 80.0}
# While Spark starts again, it takes all cores of a small machine.
KILLED_P99_MS = 60.0
CORES = 0.5


def light_traffic(share: float, first: int = 0) -> Traffic:
    """Return the load of this benchmark. `share` shortens its times; `first` is the number of its first message."""
    return Traffic(RATE, SHORTEST_S, LONGEST_S, max(5.0, WARM_UP_S * share), max(5.0, LOAD_S * share), first)


def measure(stand: Stand, scale: float) -> Outcome:
    """Measure all cases, then the same load through Kafka alone."""
    figures, series = _three_minutes(stand, scale)
    lateness_ms, figures[MANY_WAITING] = _many_waiting(stand, scale)
    series[MANY_WAITING] = curve(lateness_ms)
    bare_ms, figures[KAFKA_ALONE] = kafka_alone(stand, light_traffic(scale))
    series[KAFKA_ALONE] = curve(bare_ms)
    compare(figures, (FIRST, SECOND, KILLED, MANY_WAITING))
    return Outcome("lateness", str(light_traffic(scale)), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: percentiles of lateness, the CPU of the job, and no fault."""
    return [
        *(aim for case in (FIRST, SECOND, MANY_WAITING) for aim in lateness_aims(figures, case, LIMITS_MS)),
        *lateness_aims(figures, KILLED, {"p99": KILLED_P99_MS}),
        Aim(f"cores of all processes of the job, {SECOND}", figure(figures, SECOND, "cpu_job"), CORES),
        *(aim for case in (ALL, MANY_WAITING) for aim in (*fault_aims(figures, case), held_aim(figures, case))),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, LIMITS_MS["p99"])


def _three_minutes(stand: Stand, scale: float) -> tuple[dict[str, dict[str, Any]], dict[str, list[list[float]]]]:
    application = stand.application("lateness")
    job = stand.job(application, start=False)
    # A driver needs half a minute.
    minute_s = max(30.0, 60.0 * scale)
    traffic = Traffic(RATE, SHORTEST_S, LONGEST_S, 0.0, 3 * minute_s)
    with RunningTraffic(stand, application, traffic, job.start) as running:
        start_s = job.start_s
        running.wait_until(2 * minute_s)
        usage = job.usage.between(running.begun_s + minute_s, time.time())
        job.kill_driver()
        killed_s = time.time()
        job.start()
        away_s = time.time() - killed_s
        say(f"the job runs again, {away_s:.1f} s after the kill of its driver")
        received = running.result()
        figures: dict[str, dict[str, Any]] = {ALL: running.faults(received)}
    job.stop()
    series = {}
    ends_s = (running.begun_s, running.begun_s + minute_s, killed_s, killed_s + minute_s)
    more = {FIRST: {"start_s": round(start_s, 1)}, SECOND: usage, KILLED: {"away_s": round(away_s, 1)}}
    for case, begin_s, end_s in zip(more, ends_s, ends_s[1:], strict=False):
        lateness_ms = due_between(received, begin_s, end_s).lateness_ms
        figures[case] = {"messages": len(lateness_ms), **percentiles(lateness_ms), **more[case]}
        series[case] = curve(lateness_ms)
    return figures, series


def _many_waiting(stand: Stand, scale: float) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    application, waiting = stand.application("lateness-waiting"), int(WAITING * scale)
    say(f"{application.name}: publishing {waiting:,} messages due in 48 h")
    Publisher(stand.bootstrap, application.input, PARTITIONS).preload(
        far_loads(waiting, WAITING_FOR_S, WAITING_SPREAD_S), any_delay
    )
    job = stand.job(application)
    job.wait_for_messages(waiting, INGEST_TIMEOUT_S)
    lateness_ms, measured = run_through(stand, application, job, light_traffic(scale))
    job.stop()
    return lateness_ms, {"waiting": waiting} | measured
