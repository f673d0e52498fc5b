"""The histogram of due times, against counting one by one."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import BucketUnreadable
from state.buckets.segments import Segment
from state.index.due_counts import DueCounts
from state.index.message_index import index_entries
from streaming.status.due_histogram import DueHistogram
from streaming.status.sealed import waiting_counts
from tests.messages import messages

# Some of them within one time slot of any precision below.
EDGES = [0, 3, 10, 100, 1_000]
DUES = st.lists(st.one_of(st.integers(-50, 2_000), st.integers(-5, 15)), max_size=50).map(sorted)
BITS = st.integers(0, 12)


def counted(dues: list[int]) -> list[int]:
    edges = [-10_000, *EDGES, 10_000]
    return [sum(low <= due < high for due in dues) for low, high in pairwise(edges)]


def slots(dues: list[int], bits: int) -> DueCounts:
    counts = DueCounts(bits)
    counts.add_instants(np.array(dues, dtype=np.int64))
    return counts


def histogram_of(dues: list[int], bits: int) -> DueHistogram:
    histogram = DueHistogram(EDGES)
    histogram.add_slots(slots(dues, bits), dues[0], dues[-1])
    return histogram


@given(DUES)
def test_known_instants_are_counted_exactly(dues: list[int]) -> None:
    histogram = DueHistogram(EDGES)
    histogram.add_instants(np.array(dues, dtype=np.int64))
    assert histogram.counts == counted(dues)
    assert not histogram.estimated


@given(DUES.filter(bool))
def test_messages_that_no_edge_separates_are_counted_exactly_by_one_of_them(dues: list[int]) -> None:
    histogram = DueHistogram(EDGES)
    assert histogram.cuts(dues[0], dues[-1]) == (np.count_nonzero(counted(dues[:1] + dues[-1:])) > 1)
    if not histogram.cuts(dues[0], dues[-1]):
        histogram.add_uncut(dues[len(dues) // 2], len(dues))
        assert histogram.counts == counted(dues)


@given(DUES.filter(bool), BITS)
def test_slots_are_exact_in_sum_and_only_those_that_an_edge_cuts_are_estimated(dues: list[int], bits: int) -> None:
    histogram = histogram_of(dues, bits)
    counts = histogram.counts
    assert sum(counts) == len(dues)
    assert all(count >= 0 for count in counts)
    assert (counts[0] > 0) == (dues[0] < EDGES[0])
    assert (counts[-1] > 0) == (dues[-1] >= EDGES[-1])
    undecided = [count_undecided(edge, dues, bits) for edge in EDGES]
    assert histogram.estimated == any(undecided)
    for edge, below, most in zip(EDGES, accumulate(counts), undecided, strict=False):
        assert abs(below - sum(due < edge for due in dues)) <= most


def count_undecided(edge_ms: int, dues: list[int], bits: int) -> int:
    """Return for how many messages the time slots and the bounds leave open on which side of the edge they are due."""
    if not dues[0] < edge_ms <= dues[-1] or edge_ms % (1 << bits) == 0:
        return 0
    return sum(due >> bits == edge_ms >> bits for due in dues[1:-1])


@given(DUES.filter(bool))
def test_without_precision_bits_nothing_is_estimated(dues: list[int]) -> None:
    histogram = histogram_of(dues, 0)
    assert histogram.counts == counted(dues)
    assert not histogram.estimated


def test_a_slot_that_an_edge_cuts_is_assumed_to_be_spread_evenly_within_the_bounds() -> None:
    # The slot is from 8 to 16. The first and the last due time narrow it.
    histogram = histogram_of([9, 10, 11, 12, 13], bits=3)
    assert histogram.counts == [0, 0, 1, 4, 0, 0]
    assert histogram.estimated


def test_messages_due_from_an_edge_on_are_not_counted_before_it_even_if_their_slot_begins_before() -> None:
    histogram = histogram_of([10, 10, 12, 15], bits=3)
    assert histogram.counts == [0, 0, 0, 4, 0, 0]
    assert not histogram.estimated


def test_several_segments_of_several_precisions_add_up() -> None:
    histogram = DueHistogram(EDGES)
    histogram.add_slots(slots([1, 2], 1), 1, 2)
    histogram.add_slots(slots([50, 150], 4), 50, 150)
    histogram.add_uncut(99, 7)
    histogram.add_instants(np.array([100, 999, 1_000]))
    assert histogram.counts == [0, 2, 0, 8, 3, 1]
    assert not histogram.estimated


ROWS = st.lists(
    st.tuples(st.one_of(st.integers(0, 2_000), st.integers(0, 15)), st.sampled_from(["in-a", "in-b"])),
    min_size=1,
    max_size=40,
)


def sealed(rows: list[tuple[int, str]], bits: int) -> tuple[list[int], list[int]]:
    """Return the starts and the counts of the time slots in the metadata of a segment of (due time, topic)."""
    entries: list[Any] = index_entries(
        messages({"deliver_at_ms": due, "topic": topic, "offset": at} for at, (due, topic) in enumerate(rows)), bits
    )
    return [entry["tick_ms"] for entry in entries], [entry["count"] for entry in entries]


@given(ROWS, BITS, st.integers(0, 2_000))
def test_the_slots_of_a_partly_delivered_segment_count_its_waiting_messages(
    rows: list[tuple[int, str]], bits: int, cutoff_ms: int
) -> None:
    waiting = sorted(due for due, _ in rows if due >= cutoff_ms)
    if waiting:
        segment = Segment(1, 0, 0, "0-1", waiting[0], waiting[-1], len(waiting), 1)
        counts = waiting_counts(segment, bits, *sealed(rows, bits))
        assert len(counts) == len(waiting)
        for border_ms in range(0, 2_001, 1 << bits):
            assert counts.before(border_ms) == (sum(due < border_ms for due in waiting),) * 2


def test_a_segment_with_fewer_messages_than_its_slots_count_is_an_error() -> None:
    segment = Segment(1, 0, 0, "0-1", 5, 900, 3, 1)
    with pytest.raises(BucketUnreadable, match="a count of 0, although empty slots"):
        waiting_counts(segment, 3, [0, 800, 896], [1, 1, 2])
