"""Counts per time slot against a plain list of due times."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import BucketUnreadable
from state.index.due_counts import Bounds, DueCounts, TimeSlot
from tests.thorough import examples

BITS = 4
SLOT_MS = 1 << BITS
# Near the borders of a few time slots, and far from them.
INSTANT = st.one_of(st.integers(0, 5 * SLOT_MS), st.integers(-SLOT_MS, 100 * SLOT_MS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(st.integers(0, 6), st.integers(1, 9))),
        st.tuples(st.just("instants"), st.lists(INSTANT, max_size=6)),
        st.tuples(st.just("forget"), INSTANT),
    ),
    max_size=10,
)


def instants(dues_ms: list[int]) -> np.ndarray:
    return np.array(dues_ms, dtype=np.int64)


@given(STEPS, INSTANT, INSTANT, st.sampled_from([0, 4096]))
@settings(max_examples=examples(300))
def test_counts_and_bounds_are_those_of_the_due_times(
    steps: list[tuple[str, Any]], start_ms: int, end_ms: int, most_unordered: int
) -> None:
    counts, model = DueCounts(BITS, most_unordered), list[int]()
    for action, subject in steps:
        if action == "add":
            slot_ms, count = subject[0] * SLOT_MS, subject[1]
            counts.add(slot_ms, count)
            model += [slot_ms] * count
        elif action == "instants":
            counts.add_instants(instants(subject))
            model += subject
        else:
            dropped = [due_ms for due_ms in model if due_ms >> BITS < subject >> BITS]
            assert counts.forget_before(subject) == len(dropped)
            model = [due_ms for due_ms in model if due_ms >> BITS >= subject >> BITS]
    assert len(counts) == len(model)
    inside = sum(start_ms <= slot_ms and slot_ms + SLOT_MS <= end_ms for slot_ms in map(slot_of, model))
    overlapping = sum(start_ms < slot_ms + SLOT_MS and slot_ms < end_ms for slot_ms in map(slot_of, model))
    assert counts.between(start_ms, end_ms) == (Bounds(inside, overlapping) if start_ms < end_ms else Bounds(0, 0))
    low, high = counts.before(end_ms)
    assert low <= sum(due_ms < end_ms for due_ms in model) <= high
    first_ms = min(map(slot_of, model), default=None)
    assert counts.next_due() == (None if first_ms is None else TimeSlot(first_ms, first_ms + SLOT_MS))


def slot_of(due_ms: int) -> int:
    return due_ms >> BITS << BITS


def test_a_range_between_borders_of_slots_is_exact() -> None:
    counts = DueCounts(10)
    counts.add_instants(instants([1023, 1024, 2047, 2048]))
    assert counts.between(1024, 2048) == Bounds(2, 2)
    assert counts.between(1024, 2048).exact


def test_a_range_that_ends_inside_a_slot_counts_it_in_the_upper_bound_only() -> None:
    counts = DueCounts(10)
    counts.add_instants(instants([1023, 1024, 2047, 2048]))
    assert counts.between(1025, 2048) == Bounds(0, 2)
    assert counts.between(1025, 2047) == Bounds(0, 2)
    assert counts.between(1, 2049) == Bounds(2, 4)
    assert not counts.between(1, 2049).exact


def test_a_range_that_ends_inside_an_empty_slot_is_exact() -> None:
    counts = DueCounts(10)
    counts.add(1024, 3)
    assert counts.before(5000) == Bounds(3, 3)
    assert counts.between(100, 3000).exact


def test_a_histogram_of_neighbouring_ranges_adds_up() -> None:
    counts = DueCounts(10)
    counts.add_instants(instants(list(range(0, 50_000, 7))))
    edges_ms = [0, 1000, 10_000, 49_000, 60_000]
    below = [counts.before(edge_ms).low for edge_ms in edges_ms]
    assert sum(after - before for before, after in pairwise(below)) == len(counts)


def test_without_precision_bits_every_answer_is_exact() -> None:
    counts = DueCounts(0)
    counts.add_instants(instants([5, 5, 7]))
    assert counts.between(5, 7) == Bounds(2, 2)
    assert counts.next_due() == TimeSlot(5, 6)


def test_without_counts_nothing_is_due() -> None:
    counts = DueCounts(10)
    assert (len(counts), counts.next_due(), counts.forget_before(9999)) == (0, None, 0)
    assert counts.before(9999) == counts.between(0, 9999) == Bounds(0, 0)


def test_a_slot_that_a_cutoff_falls_inside_is_not_forgotten() -> None:
    counts = DueCounts(10)
    counts.add(1024, 3)
    assert counts.forget_before(2047) == 0
    assert counts.forget_before(2048) == 3


def test_a_slot_of_another_precision_is_refused() -> None:
    with pytest.raises(BucketUnreadable, match="no time slot of 1024 ms begins at 1536 ms"):
        DueCounts(10).add(1536, 1)


@pytest.mark.parametrize("count", [0, -1])
def test_a_slot_without_messages_is_refused(count: int) -> None:
    with pytest.raises(BucketUnreadable, match=f"a count of {count}"):
        DueCounts(10).add(1024, count)
