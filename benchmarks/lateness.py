"""Lateness: received minus due at 1,000 messages a second, with nothing else waiting and with a million waiting."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.job import Application, Job
from benchmarks.load import Header, Load, Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

RATE = 1000
LOAD_S, WARM_UP_S = 60.0, 20.0
SHORTEST_S, LONGEST_S = 3.0, 20.0
WAITING, WAITING_FOR_S, WAITING_SPREAD_S = 1_000_000, 48 * 3600.0, 3600.0
BARE_S = 20.0
INGEST_TIMEOUT_S = 900.0
_PERCENTILES = (50, 90, 99)
_CURVE = [*range(99), *np.linspace(99, 100, 21).tolist()]


def measure(stand: Stand, scale: float) -> Outcome:
    """Run both cases, then the same load through Kafka alone."""
    cases = {"nothing else waiting": 0, "1 million waiting": int(WAITING * scale)}
    aims, figures, series = [], {}, {}
    for number, (case, waiting) in enumerate(cases.items()):
        if 0 < waiting < WAITING:
            case = f"{waiting:,} waiting"
        lateness_ms, found = _case(stand, f"lateness-{number}", waiting, scale)
        figures[case], series[case] = found, _curve(lateness_ms)
        aims += [
            Aim(f"p99, {case}", found["p99_ms"], 1000, "ms"),
            Aim(f"p50, {case}", found["p50_ms"], 500, "ms"),
            Aim(f"early, {case}", found["early"], 0),
            Aim(f"inversions, {case}", found["inversions"], 0),
            Aim(f"lost or doubled, {case}", abs(found["lost"]) + found["duplicates"], 0),
        ]
    bare_ms = _bare(stand, scale)
    figures["Kafka alone"], series["Kafka alone"] = _percentiles(bare_ms), _curve(bare_ms)
    for found in list(figures.values())[:-1]:
        for name in ("p50_ms", "p99_ms"):
            found[f"{name}_to_kafka_alone"] = round(found[name] / figures["Kafka alone"][name], 1)
    about = f"{RATE:,} messages/s for {_load_s(scale):.0f} s, due after {SHORTEST_S:.0f}-{LONGEST_S:.0f} s"
    return Outcome("lateness", about, aims, figures, series)


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    figure, axes = figure_of(outcome)
    for case, (percents, values) in outcome.series.items():
        axes.plot(np.maximum(values, 0.1), percents, label=case)
    axes.set(xscale="log", xlabel="received - deliver_at, ms", ylabel="% of messages within")
    axes.axvline(1000, color="grey", linestyle=":", label="aim for p99")
    axes.legend()
    return figure


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
    lateness_ms, found = under_load(stand, application, job, max(5.0, WARM_UP_S * scale), _load_s(scale))
    job.stop()
    return lateness_ms, {"waiting": waiting} | found


def under_load(
    stand: Stand, application: Application, job: Job, warm_up_s: float, load_s: float
) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Publish `RATE` messages/s to a job that has delivered nothing yet; return lateness in ms, and all figures.

    Lateness and usage are of the `load_s` after the warm-up.
    """
    say(f"{application.name}: {RATE:,} messages/s for {warm_up_s:.0f} s of warm-up and {load_s:.0f} s")
    received, start_s = _received(stand, application, warm_up_s + load_s)
    start_s += warm_up_s
    counted = received.where(received["number"] >= int(RATE * warm_up_s))
    lateness_ms = counted.lateness_ms
    found: dict[str, Any] = {"messages": int(RATE * load_s)}
    # Faults count in the warm-up as well: being cold excuses lateness, and nothing else.
    found |= _percentiles(lateness_ms) | received.faults(int(RATE * (warm_up_s + load_s)))
    found |= job.triggers(start_s, start_s + load_s) | job.usage.between(start_s, start_s + load_s)
    return lateness_ms, found


def _received(stand: Stand, application: Application, seconds: float) -> tuple[Received, float]:
    """Publish for `seconds`; return all that came out, and when the publishing began (epoch s)."""
    chance = random.Random(2)

    def delayed(number: int, now_s: float) -> tuple[int, list[Header]]:
        stamp_ms = int(now_s * 1000)
        due_ms = stamp_ms + int(chance.uniform(SHORTEST_S, LONGEST_S) * 1000)
        return due_ms * 1000, [any_delay(Load(number, due_ms, stamp_ms)), ("trace", b"%d" % number)]

    publisher, out = Publisher(stand.bootstrap, application.input, PARTITIONS), stand.folder / f"{application.name}.npz"
    count, limit_s = int(RATE * seconds), seconds + LONGEST_S + 90
    with Receiver(stand.bootstrap, application.output, PARTITIONS, count, limit_s, out) as receiver:
        start_s = time.time()
        publisher.pace(RATE, seconds, delayed)
        received = receiver.result()
    publisher.close()
    return received, start_s


def _bare(stand: Stand, scale: float) -> npt.NDArray[np.float64]:
    """Publish at the same rate to a topic that the receiver reads itself; return the latencies in ms."""
    seconds, topic = max(5.0, BARE_S * scale), stand.topic("bare")
    say(f"the same load through Kafka alone for {seconds:.0f} s")
    publisher, out = Publisher(stand.bootstrap, topic, PARTITIONS), stand.folder / "bare.npz"
    count = int(RATE * seconds)
    with Receiver(stand.bootstrap, topic, PARTITIONS, count, seconds + 60, out) as receiver:
        publisher.pace(RATE, seconds, lambda number, now_s: (int(now_s * 1e6), []))
        received = receiver.result()
    publisher.close()
    return received.where(received["number"] >= count // 4).lateness_ms


def _load_s(scale: float) -> float:
    return max(5.0, LOAD_S * scale)


def _percentiles(values_ms: npt.NDArray[np.float64]) -> dict[str, float]:
    found = {f"p{percent}_ms": round(float(np.percentile(values_ms, percent)), 1) for percent in _PERCENTILES}
    return found | {"max_ms": round(float(values_ms.max()), 1)}


def _curve(values_ms: npt.NDArray[np.float64]) -> list[list[float]]:
    return [_CURVE, np.percentile(values_ms, _CURVE).round(1).tolist()]
