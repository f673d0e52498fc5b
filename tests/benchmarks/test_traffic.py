"""Which messages of a load count for lateness, and the figures if none counts."""

from __future__ import annotations

import numpy as np

from benchmarks.receiver import COLUMNS, Received
from benchmarks.traffic import Traffic, curve, due_between, percentiles


def received(due_s: list[float], late_ms: float = 5.0) -> Received:
    due_us = np.array(due_s) * 1e6
    columns = {name: np.zeros(len(due_s), np.int64) for name in COLUMNS}
    columns |= {"due_us": due_us.astype(np.int64), "received_us": (due_us + late_ms * 1000).astype(np.int64)}
    return Received(columns)


def test_a_load_publishes_in_its_warm_up_too() -> None:
    traffic = Traffic(rate=100, shortest_s=1, longest_s=2, warm_up_s=20, load_s=60)
    assert traffic.seconds == 80
    assert traffic.count == 8000
    assert str(traffic) == "100 messages/s for 80 s, due after 1-2 s"


def test_messages_due_in_the_window_count_and_its_end_is_exclusive() -> None:
    kept = due_between(received([9.9, 10.0, 19.9, 20.0]), 10.0, 20.0)
    assert (kept["due_us"] / 1e6).tolist() == [10.0, 19.9]


def test_lateness_is_received_minus_due() -> None:
    late_ms = received([1.0, 2.0], late_ms=7.0).lateness_ms
    assert percentiles(late_ms) == {"p50_ms": 7.0, "p90_ms": 7.0, "p99_ms": 7.0, "max_ms": 7.0}


def test_without_messages_that_count_there_is_no_figure() -> None:
    nothing = due_between(received([1.0]), 2.0, 3.0).lateness_ms
    assert percentiles(nothing) == {}
    assert curve(nothing) == [[], []]
