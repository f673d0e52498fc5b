"""Topics: lateness and CPU with a thousand output topics, compared with one topic for the same load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from benchmarks.aims import Figures, fault_aims, figure, held_aim, lateness_aims, ratio
from benchmarks.job import Application
from benchmarks.lateness import light_traffic
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import curve, run_through
from benchmarks.waiting import say, wait_until

TOPICS = 1_000
# Each of a thousand topics has subscribers of its own, and the one that measures lateness reads some of them. Kafka
# looks at all partitions of a waiting fetch whenever one of them gets a record. `ALL` measures what that costs a
# subscriber of all topics, and its broker.
WATCHED = 50
ONE, MANY, ALL = "one output topic", "1,000 output topics", "1,000 output topics, one subscriber of all"
P99_MS, MOST_OF_ONE = 35.0, 1.3
# Topics created in one request.
_AT_ONCE = 100
_CREATION_S = 300.0
# The first index entry of a partition, after 4 kB by default, is a page fault in a new file: 10 ms and more for a
# broker on ext4. Topics that begin together all have theirs within seconds, once. The benchmark does not measure that.
_NO_INDEX = {"index.interval.bytes": "1000000000"}


def measure(stand: Stand, scale: float) -> Outcome:
    """Send the same load through a job with one output topic, and through one with many, named in turn."""
    figures: dict[str, dict[str, Any]] = {}
    series = {}
    for cases, count in (((ONE,), 1), ((MANY, ALL), TOPICS)):
        application, outputs = _application(stand, f"topics-{count}", count)
        job = stand.job(application)
        say(f"{application.name}: the job started in {job.start_s:.0f} s")
        first = 0
        for case in cases:
            watched = WATCHED if case == MANY else 0
            traffic = replace(light_traffic(scale, first), outputs=outputs, watched=watched)
            lateness_ms, measured = run_through(stand, application, job, traffic)
            figures[case] = {"topics": count} | measured
            series[case] = curve(lateness_ms)
            first += traffic.count
        job.stop()
    for case in (MANY, ALL):
        for name in ("p50_ms", "p99_ms", "cpu_job", "cpu_release", "cpu_broker"):
            share = ratio(figure(figures, case, name), figure(figures, ONE, name))
            figures[case][f"{name}_to_one"] = share and round(share, 2)
    return Outcome("topics", str(light_traffic(scale)), aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: lateness and the job's CPU nearly as with one topic, and no fault."""
    faults = [aim for case in (ONE, MANY, ALL) for aim in (*fault_aims(figures, case), held_aim(figures, case))]
    ratios = [
        Aim(f"{name} to that with one topic", figure(figures, MANY, f"{name}_to_one"), MOST_OF_ONE)
        for name in ("p99_ms", "cpu_job")
    ]
    return [*lateness_aims(figures, MANY, {"p99": P99_MS}), *ratios, *faults]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, P99_MS)


def _application(stand: Stand, name: str, count: int) -> tuple[Application, tuple[str, ...]]:
    """Return an application and its `count` output topics."""
    application = stand.application(name, f"topics.allowed_outputs={name}-to-*")
    outputs = tuple(f"{name}-to-{number}" for number in range(count))
    _create(stand, outputs)
    return application, outputs


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
