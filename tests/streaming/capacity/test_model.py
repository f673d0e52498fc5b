"""The estimates of the cost model for small and large loads, and for settings."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.load import load_settings
from streaming.capacity.model import Load, capacity_of

_DAY_S = 86_400.0
LOADS = st.builds(
    Load,
    st.floats(0, 1e6),
    st.floats(0, 366 * _DAY_S),
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.floats(0, 30 * _DAY_S),
)


@given(LOADS)
def test_every_figure_is_finite_and_no_load_takes_less_than_nothing(load: Load) -> None:
    figures = asdict(capacity_of(load, load_settings()))
    assert all(0 <= value < 1e20 for value in figures.values()), figures


@given(LOADS, st.floats(1, 10))
def test_a_larger_load_takes_no_less(load: Load, factor: float) -> None:
    more = Load(load.rate * factor, load.spread_s, load.size, load.replication, load.retention_s)
    few, many = (capacity_of(each, load_settings()) for each in (load, more))
    for name in ("waiting", "stored", "most_buckets", "segments", "metadata", "cores", "broker_write", "broker_disk"):
        assert getattr(many, name) >= getattr(few, name), name


def test_what_is_due_within_the_horizon_is_not_stored() -> None:
    capacity = capacity_of(Load(1000, 50, 100), load_settings())
    assert (capacity.waiting, capacity.stored, capacity.most_files, capacity.rewrites) == (25_000, 0, 0, 0)


def test_metadata_depends_on_how_many_wait_and_not_on_the_spread() -> None:
    near, far = (capacity_of(Load(1e8 / days / _DAY_S, 2 * days * _DAY_S, 100), load_settings()) for days in (1, 180))
    assert near.waiting == pytest.approx(1e8)
    assert far.metadata == pytest.approx(near.metadata, rel=0.01)
    assert far.metadata <= 0.05 * 1e8


def test_rewrites_grow_with_the_logarithm_of_what_waits() -> None:
    settings = load_settings()
    rewrites = [capacity_of(Load(10, days * _DAY_S, 100), settings).rewrites for days in (1, 16, 256)]
    assert rewrites[2] - rewrites[1] == pytest.approx(1, abs=0.1)
    assert rewrites[1] - rewrites[0] == pytest.approx(1, abs=0.1)
