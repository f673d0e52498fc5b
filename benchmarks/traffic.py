"""Sends a steady load through a running job, and measures its lateness and its cost."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.job import Application, Job
from benchmarks.load import Header, Load, Publisher, any_delay
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

DRAIN_S = 90.0
_PERCENTILES = (50, 90, 99)
_CURVE = [*range(99), *np.linspace(99, 100, 21).tolist()]


@dataclass(frozen=True)
class Traffic:
    """`rate` messages/s, numbered from `first`, each due after a delay between `shortest_s` and `longest_s`.

    Messages that fall due in the `load_s` after `warm_up_s` count for lateness.
    """

    rate: int
    shortest_s: float
    longest_s: float
    warm_up_s: float
    load_s: float
    first: int = 0

    @property
    def seconds(self) -> float:
        """The duration of publishing."""
        return self.warm_up_s + self.load_s

    @property
    def count(self) -> int:
        """The number of messages to publish."""
        return int(self.rate * self.seconds)

    def __str__(self) -> str:
        delays = f"due after {self.shortest_s:.0f}-{self.longest_s:.0f} s"
        return f"{self.rate:,} messages/s for {self.seconds:.0f} s, {delays}"


def run_through(
    stand: Stand, application: Application, job: Job, traffic: Traffic
) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Send `traffic` through the job; return the lateness (ms) of the messages that count, and all figures.

    The faults include those of the warm-up: a cold job may be late, but must not break the contract.
    """
    say(f"{application.name}: {traffic}")
    received, begun_s = _received(stand, application, traffic)
    start_s, end_s = begun_s + traffic.warm_up_s, begun_s + traffic.seconds
    lateness_ms = due_between(received, start_s, end_s).lateness_ms
    return lateness_ms, {
        "published": traffic.count,
        "messages": len(lateness_ms),
        **percentiles(lateness_ms),
        **received.faults(traffic.count, traffic.first),
        **job.triggers(start_s, end_s),
        **job.usage.between(start_s, end_s),
    }


def due_between(received: Received, start_s: float, end_s: float) -> Received:
    """Return the records that fall due in [start_s, end_s), epoch s."""
    due_s = received["due_us"] / 1e6
    return received.where((due_s >= start_s) & (due_s < end_s))


def percentiles(values_ms: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return percentiles and the maximum. Returns nothing for no values, so that an aim for them is not met."""
    if not len(values_ms):
        return {}
    figures = {f"p{percent}_ms": round(float(np.percentile(values_ms, percent)), 1) for percent in _PERCENTILES}
    return figures | {"max_ms": round(float(values_ms.max()), 1)}


def curve(values_ms: npt.NDArray[np.float64]) -> list[list[float]]:
    """Return percentages, and for each the lateness within which that share of the messages was received."""
    return [_CURVE, np.percentile(values_ms, _CURVE).round(1).tolist()] if len(values_ms) else [[], []]


def _received(stand: Stand, application: Application, traffic: Traffic) -> tuple[Received, float]:
    """Publish the traffic; return all received records, and when the publishing began (epoch s)."""
    chance = random.Random(2)

    def delayed(number: int, now_s: float) -> tuple[int, list[Header]]:
        stamp_ms = int(now_s * 1000)
        due_ms = stamp_ms + int(chance.uniform(traffic.shortest_s, traffic.longest_s) * 1000)
        return due_ms * 1000, [any_delay(Load(number, due_ms, stamp_ms)), ("trace", b"%d" % number)]

    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    out = stand.folder / f"{application.name}-{traffic.first}.npz"
    limit_s, starts = traffic.seconds + traffic.longest_s + DRAIN_S, stand.end_offsets(application.output)
    topic, count = application.output, traffic.count
    with Receiver(stand.bootstrap, topic, PARTITIONS, count, limit_s, out, starts) as receiver:
        begun_s = time.time()
        publisher.pace(traffic.rate, traffic.seconds, delayed, traffic.first)
        received = receiver.result()
    publisher.close()
    return received, begun_s
