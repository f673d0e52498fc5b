"""Sends a steady load through a running job, and measures its lateness and its cost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from benchmarks.aims import percentile_name
from benchmarks.held_order import faults_of
from benchmarks.job import Application, Job
from benchmarks.load import Header, Load, Publisher, any_delay
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

DRAIN_S = 90.0
_PERCENTILES = (50, 90, 99, 99.9)
_CURVE = [*range(99), *np.linspace(99, 100, 21).tolist()]


@dataclass(frozen=True)
class Traffic:
    """`rate` messages/s, numbered from `first`, each due after a delay between `shortest_s` and `longest_s`.

    Messages name the topics of `outputs` in turn; without any, they go to the job's default output topic. The
    subscriber that measures lateness reads the first `watched` of them, or all if that is 0; the others are read
    afterwards.

    With a longest delay of 0 the messages are plain ones, without a header for a due time. Messages that fall due in
    the `load_s` after `warm_up_s` count for lateness.
    """

    rate: int
    shortest_s: float
    longest_s: float
    warm_up_s: float
    load_s: float
    first: int = 0
    outputs: tuple[str, ...] = ()
    watched: int = 0

    @property
    def seconds(self) -> float:
        """The duration of publishing."""
        return self.warm_up_s + self.load_s

    @property
    def count(self) -> int:
        """The number of messages to publish."""
        return int(self.rate * self.seconds)

    @property
    def counts_s(self) -> tuple[float, float]:
        """The window of due times that count, in seconds from the start of publishing."""
        return self.warm_up_s, self.seconds

    @property
    def watched_count(self) -> int:
        """The number of messages to publish to the topics that are read while they come."""
        if not self.watched:
            return self.count
        return sum(number % len(self.outputs) < self.watched for number in range(self.first, self.first + self.count))

    def message(self, number: int, now_s: float, chance: random.Random) -> tuple[int, list[Header]]:
        """Return the due time (epoch microseconds) and the headers of a message that is published at `now_s`."""
        stamp_ms = int(now_s * 1000)
        headers = [("trace", b"%d" % number)]
        if self.outputs:
            headers.append(("deliver-to", self.outputs[number % len(self.outputs)].encode()))
        if not self.longest_s:
            return stamp_ms * 1000, headers
        due_ms = stamp_ms + int(chance.uniform(self.shortest_s, self.longest_s) * 1000)
        return due_ms * 1000, [any_delay(Load(number, due_ms, stamp_ms)), *headers]

    def __str__(self) -> str:
        if not self.longest_s:
            return f"{self.rate:,} plain messages/s for {self.seconds:.0f} s"
        delays = f"due after {self.shortest_s:g}-{self.longest_s:g} s"
        return f"{self.rate:,} messages/s for {self.seconds:.0f} s, {delays}"


def run_through(
    stand: Stand, application: Application, job: Job, traffic: Traffic
) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Send `traffic` through the job; return the lateness (ms) of the messages that count, and all figures.

    The faults include faults of the warm-up: a cold job may be late, but must not break the contract. Order counts for
    messages that were accepted in time.
    """
    say(f"{application.name}: {traffic}")
    with stand.judge_watch(application) as watch:
        received, later, begun_s = _received(stand, application, traffic, job.check)
        watch.drain()
        acceptance = watch.acceptance()
    start_s, end_s = (begun_s + at_s for at_s in traffic.counts_s)
    lateness_ms = due_between(received, start_s, end_s).lateness_ms
    received = received if later is None else received.and_of_others(later)
    published_until_s = begun_s + traffic.seconds
    return lateness_ms, {
        "published": traffic.count,
        "messages": len(lateness_ms),
        **percentiles(lateness_ms),
        **faults_of(received, traffic.count, traffic.first, application.input, acceptance),
        **_backlog(stand, application, job, start_s, published_until_s, traffic.rate),
        **job.triggers(start_s, published_until_s),
        **job.usage.between(start_s, published_until_s),
    }


class RunningTraffic:
    """Publishes `traffic` in a thread, while a subscriber reads and the judge watches. A context manager; it ends them.

    `begin` is called when the subscriber is ready, before the first message.
    """

    def __init__(
        self, stand: Stand, application: Application, traffic: Traffic, begin: Callable[[], None] = lambda: None
    ) -> None:
        self.traffic = traffic
        self._application, self._begin = application, begin
        self._publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
        out = stand.folder / f"{application.name}.npz"
        limit_s = traffic.seconds + traffic.longest_s + DRAIN_S
        self._receiver = Receiver(stand.bootstrap, [application.output], PARTITIONS, traffic.count, limit_s, out)
        self._watch = stand.judge_watch(application)
        self._thread = threading.Thread(target=self._publish, daemon=True, name="load")

    def __enter__(self) -> Self:
        self._receiver.__enter__()
        say(f"{self._application.name}: {self.traffic}")
        self._begin()
        self.begun_s = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._receiver.__exit__(kind, error, trace)
        self._watch.close()

    def wait_until(self, at_s: float) -> None:
        """Wait until `at_s` seconds from the start of publishing. Raises RuntimeError if that is over already."""
        left_s = self.begun_s + at_s - time.time()
        if left_s < 0:
            raise RuntimeError(f"the service was not back {-left_s:.0f} s ago, for the next outage")
        time.sleep(left_s)

    def result(self) -> Received:
        """Wait until all is published and received, or until the time for that is over."""
        self._thread.join()
        self._publisher.close()
        return self._receiver.result()

    def faults(self, received: Received) -> dict[str, float]:
        """Count the faults (`benchmarks.held_order`)."""
        self._watch.drain()
        count = self.traffic.count
        return {"published": count} | faults_of(received, count, 0, self._application.input, self._watch.acceptance())

    def _publish(self) -> None:
        chance = random.Random(2)
        self._publisher.pace(
            self.traffic.rate, self.traffic.seconds, lambda number, now_s: self.traffic.message(number, now_s, chance)
        )


def due_between(received: Received, start_s: float, end_s: float) -> Received:
    """Return the records that fall due in [start_s, end_s), epoch s."""
    due_s = received["due_us"] / 1e6
    return received.where((due_s >= start_s) & (due_s < end_s))


def percentiles(values_ms: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return percentiles and the maximum. Returns nothing for no values, so that an aim for them is not met."""
    if not len(values_ms):
        return {}
    figures = {
        percentile_name(f"p{percent:g}"): round(float(np.percentile(values_ms, percent)), 1) for percent in _PERCENTILES
    }
    return figures | {"max_ms": round(float(values_ms.max()), 1)}


def curve(values_ms: npt.NDArray[np.float64]) -> list[list[float]]:
    """Return percentages, and for each the lateness within which that share of the messages was received."""
    return [_CURVE, np.percentile(values_ms, _CURVE).round(1).tolist()] if len(values_ms) else [[], []]


def grown(values: Sequence[float]) -> float | None:
    """Return by how much the mean of the last quarter exceeds the first's; None for fewer than four values."""
    quarter = len(values) // 4
    return float(np.mean(values[-quarter:]) - np.mean(values[:quarter])) if quarter else None


def _backlog(
    stand: Stand, application: Application, job: Job, start_s: float, end_s: float, rate: int
) -> dict[str, float]:
    """Return what batches in [start_s, end_s) epoch s had left unread when they were committed, in s of the traffic."""
    left_s = [
        (sum(stand.offsets_at(application.input, batch.committed_s)) - batch.end) / rate
        for batch in job.batches.between(start_s, end_s)
    ]
    if (growth_s := grown(left_s)) is None:
        return {}
    return {"backlog_s": round(float(np.mean(left_s)), 2), "backlog_grown_s": round(growth_s, 2)}


def _received(
    stand: Stand, application: Application, traffic: Traffic, begin: Callable[[], None]
) -> tuple[Received, Received | None, float]:
    """Call `begin`, and publish the traffic.

    Returns the records that were received as they came, those that were read afterwards, if any, and the start of
    publishing (epoch s).
    """
    chance = random.Random(2)
    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    topics, partitions = traffic.outputs or (application.output,), application.output_partitions
    watched, others = topics[: traffic.watched or None], topics[traffic.watched :] if traffic.watched else ()
    limit_s = traffic.seconds + traffic.longest_s + DRAIN_S

    def receiver_of(topics: Sequence[str], count: int, starts: Sequence[int]) -> Receiver:
        out = stand.folder / f"{application.name}-{traffic.first}-{topics[0]}.npz"
        return Receiver(stand.bootstrap, topics, partitions, count, limit_s, out, starts)

    starts_of = {topic: stand.end_offsets(topic, partitions) for topic in topics}
    starts, other_starts = ([offset for topic in own for offset in starts_of[topic]] for own in (watched, others))
    with receiver_of(watched, traffic.watched_count, starts) as receiver:
        begin()
        begun_s = time.time()
        publisher.pace(
            traffic.rate,
            traffic.seconds,
            lambda number, now_s: traffic.message(number, now_s, chance),
            traffic.first,
        )
        received = receiver.result()
    publisher.close()
    if not others:
        return received, None, begun_s
    with receiver_of(others, traffic.count - traffic.watched_count, other_starts) as receiver:
        return received, receiver.result(), begun_s
