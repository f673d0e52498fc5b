"""The histogram of what is due when, against counting one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming.waiting import DueHistogram

EDGES = [0, 10, 100, 1_000]
DUES = st.lists(st.integers(-50, 2_000), max_size=50).map(sorted)


def _counted(dues: list[int]) -> list[int]:
    edges = [-10_000, *EDGES, 10_000]
    return [sum(low <= due < high for due in dues) for low, high in pairwise(edges)]


@given(DUES)
def test_known_instants_are_counted_exactly(dues: list[int]) -> None:
    histogram = DueHistogram(EDGES)
    histogram.add_instants(np.array(dues, dtype=np.int64))
    assert histogram.counts == _counted(dues)
    assert not histogram.estimated


@given(DUES.filter(bool))
def test_a_span_is_exact_in_sum_and_within_its_bounds_and_says_when_it_is_estimated(dues: list[int]) -> None:
    histogram = DueHistogram(EDGES)
    histogram.add_span(dues[0], dues[-1], len(dues))
    assert sum(histogram.counts) == len(dues)
    assert all(count >= 0 for count in histogram.counts)
    if not histogram.estimated:
        assert histogram.counts == _counted(dues)
    assert (histogram.counts[0] > 0) == (dues[0] < EDGES[0])
    assert (histogram.counts[-1] > 0) == (dues[-1] >= EDGES[-1])
