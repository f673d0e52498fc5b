"""Topics: lateness and CPU with a thousand output topics, beside those with one of as many messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from benchmarks.aims import Figures, fault_aims, figure, held_aim, lateness_aims, ratio
from benchmarks.lateness import light_traffic
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import curve, run_through
from benchmarks.waiting import say, wait_until

TOPICS = 1_000
ONE, MANY = "one output topic", "1,000 output topics"
P99_MS, MOST_OF_ONE = 35.0, 1.3
# Topics created in one request.
_AT_ONCE = 100
_CREATION_S = 300.0
# The first index entry of a partition, after 4 kB by default, is a page fault in a new file: 10 ms and more for a
# broker on ext4. Topics that begin together all have theirs within seconds, once. That is not what is measured.
_NO_INDEX = {"index.interval.bytes": "1000000000"}


def measure(stand: Stand, scale: float) -> Outcome:
    """Send the same load through a job with one output topic, and through one with many, named in turn."""
    figures, series = {}, {}
    for case, count in ((ONE, 1), (MANY, TOPICS)):
        lateness_ms, figures[case] = _case(stand, f"topics-{count}", count, scale)
        series[case] = curve(lateness_ms)
    for name in ("p50_ms", "p99_ms", "cpu_job", "cpu_release", "cpu_broker"):
        share = ratio(figure(figures, MANY, name), figure(figures, ONE, name))
        figures[MANY][f"{name}_to_one"] = share and round(share, 2)
    return Outcome("topics", str(light_traffic(scale)), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: lateness and the job's CPU nearly as with one topic, and no fault."""
    faults = [aim for case in (ONE, MANY) for aim in (*fault_aims(figures, case), held_aim(figures, case))]
    ratios = [
        Aim(f"{name} to that with one topic", figure(figures, MANY, f"{name}_to_one"), MOST_OF_ONE)
        for name in ("p99_ms", "cpu_job")
    ]
    return [*lateness_aims(figures, MANY, {"p99": P99_MS}), *ratios, *faults]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)


def _case(stand: Stand, name: str, count: int, scale: float) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    application = stand.application(name, f"topics.allowed_outputs={name}-to-*")
    outputs = tuple(f"{name}-to-{number}" for number in range(count))
    _create(stand, outputs)
    job = stand.job(application)
    say(f"{name}: the job started in {job.start_s:.0f} s")
    lateness_ms, measured = run_through(stand, application, job, replace(light_traffic(scale), outputs=outputs))
    job.stop()
    return lateness_ms, {"topics": count, "start_s": round(job.start_s, 1)} | measured


def _create(stand: Stand, topics: Sequence[str]) -> None:
    """Create `topics`, and write a record to each partition, so that the broker has made all files."""
    for at in range(0, len(topics), _AT_ONCE):
        new = [NewTopic(topic, PARTITIONS, 1, config=_NO_INDEX) for topic in topics[at : at + _AT_ONCE]]
        for future in stand.admin.create_topics(new, request_timeout=_CREATION_S).values():
            future.result()

    def are_known() -> bool:
        return set(topics) <= stand.admin.list_topics(timeout=60).topics.keys()

    wait_until(are_known, _CREATION_S, f"{len(topics)} topics", lambda: None)
    producer = Producer({"bootstrap.servers": stand.bootstrap})
    for topic in topics:
        for number in range(PARTITIONS):
            producer.produce(topic, b"first", partition=number)
    if left := producer.flush(_CREATION_S):
        raise RuntimeError(f"{left} first records could not be written")
