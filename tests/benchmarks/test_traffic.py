"""Which messages a load has, which of them count for lateness, and whether the backlog of a job grows."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.receiver import COLUMNS, Received
from benchmarks.traffic import Traffic, curve, due_between, grown, percentiles


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
    assert traffic.counts_s == (20, 80)


def test_a_message_is_due_within_the_delays() -> None:
    traffic, chance = Traffic(rate=100, shortest_s=1, longest_s=2, warm_up_s=20, load_s=60), random.Random(1)
    delays_s = [traffic.message(number, 100.0, chance)[0] / 1e6 - 100 for number in range(100)]
    assert 1 <= min(delays_s) < 1.1
    assert 1.9 < max(delays_s) <= 2


def test_a_plain_message_has_no_due_time_and_is_due_at_its_timestamp() -> None:
    traffic = Traffic(rate=100, shortest_s=0, longest_s=0, warm_up_s=20, load_s=60)
    assert str(traffic) == "100 plain messages/s for 80 s"
    assert traffic.message(7, 1.2345, random.Random(1)) == (1_234_000, [("trace", b"7")])


def test_messages_name_the_output_topics_in_turn() -> None:
    traffic = Traffic(rate=100, shortest_s=0, longest_s=0, warm_up_s=20, load_s=60, outputs=("a", "b"))
    named = [dict(traffic.message(number, 1.0, random.Random(1))[1])["deliver-to"] for number in range(3)]
    assert named == [b"a", b"b", b"a"]


def test_only_messages_of_watched_topics_are_read_while_they_come() -> None:
    outputs = ("a", "b", "c")
    traffic = Traffic(rate=100, shortest_s=0, longest_s=0, warm_up_s=0, load_s=0.1, first=1, outputs=outputs)
    assert traffic.watched_count == traffic.count == 10
    # Messages 1 to 10: 3, 6, 9 name "a", and 1, 4, 7, 10 name "b".
    assert replace(traffic, watched=1).watched_count == 3
    assert replace(traffic, watched=2).watched_count == 7


def test_partitions_of_other_topics_are_numbered_behind_those_received() -> None:
    own, others = received([1.0, 2.0]), received([3.0])
    own.columns["partition"][:] = [0, 1]
    together = own.and_of_others(others)
    assert together["partition"].tolist() == [0, 1, 2]
    assert (together["due_us"] / 1e6).tolist() == [1.0, 2.0, 3.0]


def test_messages_due_in_the_window_count_and_its_end_is_exclusive() -> None:
    kept = due_between(received([9.9, 10.0, 19.9, 20.0]), 10.0, 20.0)
    assert (kept["due_us"] / 1e6).tolist() == [10.0, 19.9]


def test_lateness_is_received_minus_due() -> None:
    late_ms = received([1.0, 2.0], late_ms=7.0).lateness_ms
    assert percentiles(late_ms) == {"p50_ms": 7.0, "p90_ms": 7.0, "p99_ms": 7.0, "p99_9_ms": 7.0, "max_ms": 7.0}


def test_without_messages_that_count_there_is_no_figure() -> None:
    nothing = due_between(received([1.0]), 2.0, 3.0).lateness_ms
    assert percentiles(nothing) == {}
    assert curve(nothing) == [[], []]


@pytest.mark.parametrize(
    ("values", "by"),
    [([], None), ([1.0, 1.0, 9.0], None), ([1.0, 7.0, 7.0, 3.0], 2.0), ([1.0, 3.0, 9.0, 9.0, 9.0, 9.0, 2.0, 2.0], 0.0)],
)
def test_growth_is_the_last_quarter_against_the_first(values: list[float], by: float | None) -> None:
    assert grown(values) == by
