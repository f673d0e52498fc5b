"""The reference for lateness: the same load through Kafka alone, to a topic that the subscriber reads directly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.aims import figure, ratio
from benchmarks.load import Publisher
from benchmarks.receiver import Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, due_between, percentiles
from benchmarks.waiting import say

CASE = "Kafka alone"


def kafka_alone(stand: Stand, traffic: Traffic, name: str = "alone") -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Publish at the rate of `traffic`, for as long; messages are due at once. Returns lateness (ms) and figures.

    `name` is the name of the topic, which must not exist.
    """
    topic = stand.topic(name)
    say(f"{traffic.rate:,} messages/s through Kafka alone for {traffic.seconds:.0f} s")
    publisher, out = Publisher(stand.bootstrap, topic, PARTITIONS), stand.folder / f"{name}.npz"
    receiving = Receiver(stand.bootstrap, [topic], PARTITIONS, traffic.count, traffic.seconds + 60, out)
    with stand.watch() as watch, receiving as receiver:
        publisher.pace(traffic.rate, traffic.seconds, lambda number, now_s: (int(now_s * 1e6), []))
        received = receiver.result()
    publisher.close()
    begun_s = received["due_us"].min() / 1e6
    lateness_ms = due_between(received, begun_s + traffic.warm_up_s, begun_s + traffic.seconds).lateness_ms
    return lateness_ms, {"messages": len(lateness_ms)} | percentiles(lateness_ms) | watch.whole()


def compare(figures: dict[str, dict[str, Any]], cases: Iterable[str], reference: str = CASE) -> None:
    """Add to the figures of `cases` their ratios to Kafka alone, which is the case `reference`."""
    for case in cases:
        for name in ("p50_ms", "p99_ms", "p99_9_ms"):
            share = ratio(figure(figures, case, name), figure(figures, reference, name))
            figures[case][f"{name}_to_kafka_alone"] = share and round(share, 1)
