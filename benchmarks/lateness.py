"""Lateness (time received minus due time) at 1,000 messages/s, with nothing else waiting and with a million waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aims import P99_MS, Figures, delivery_aims, figure, ratio
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.receiver import Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, curve, due_between, percentiles, run_through
from benchmarks.waiting import say

RATE = 1000
LOAD_S, WARM_UP_S = 60.0, 20.0
SHORTEST_S, LONGEST_S = 3.0, 20.0
WAITING, WAITING_FOR_S, WAITING_SPREAD_S = 1_000_000, 48 * 3600.0, 3600.0
INGEST_TIMEOUT_S = 900.0
NONE_WAITING, MANY_WAITING, KAFKA_ALONE = "nothing else waiting", "1 million waiting", "Kafka alone"


def light_traffic(share: float, first: int = 0) -> Traffic:
    """Return the load of this benchmark. `share` shortens its times; `first` is the number of its first message."""
    return Traffic(RATE, SHORTEST_S, LONGEST_S, max(5.0, WARM_UP_S * share), max(5.0, LOAD_S * share), first)


def measure(stand: Stand, scale: float) -> Outcome:
    """Measure both cases, then the same load through Kafka alone."""
    figures, series = {}, {}
    for number, (case, waiting) in enumerate({NONE_WAITING: 0, MANY_WAITING: int(WAITING * scale)}.items()):
        lateness_ms, figures[case] = _case(stand, f"lateness-{number}", waiting, scale)
        series[case] = curve(lateness_ms)
    bare_ms, figures[KAFKA_ALONE] = _kafka_alone(stand, light_traffic(scale))
    series[KAFKA_ALONE] = curve(bare_ms)
    for case in (NONE_WAITING, MANY_WAITING):
        for name in ("p50_ms", "p99_ms"):
            share = ratio(figure(figures, case, name), figure(figures, KAFKA_ALONE, name))
            figures[case][f"{name}_to_kafka_alone"] = share and round(share, 1)
    return Outcome("lateness", str(light_traffic(scale)), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims for both cases: low median and 99th percentile of lateness, and no fault."""
    return [aim for case in (NONE_WAITING, MANY_WAITING) for aim in delivery_aims(figures, case)]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)


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


def _kafka_alone(stand: Stand, traffic: Traffic) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Publish at the same rate, for as long, to a topic that the receiver reads directly; messages are due at once."""
    topic = stand.topic("bare")
    say(f"the same load through Kafka alone for {traffic.seconds:.0f} s")
    publisher, out = Publisher(stand.bootstrap, topic, PARTITIONS), stand.folder / "bare.npz"
    receiving = Receiver(stand.bootstrap, topic, PARTITIONS, traffic.count, traffic.seconds + 60, out)
    with stand.watch() as watch, receiving as receiver:
        publisher.pace(traffic.rate, traffic.seconds, lambda number, now_s: (int(now_s * 1e6), []))
        received = receiver.result()
    publisher.close()
    begun_s = received["due_us"].min() / 1e6
    lateness_ms = due_between(received, begun_s + traffic.warm_up_s, begun_s + traffic.seconds).lateness_ms
    return lateness_ms, {"messages": len(lateness_ms)} | percentiles(lateness_ms) | watch.whole()
