from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from state.buckets.catalog import SegmentCatalog
from state.buckets.reach import Reach, due_in
from state.buckets.segments import Segment

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_MB = 2**20


def reach(*segments: tuple[int, int, int], max_mb: int = 100) -> Reach:
    """Return the reach over segments given as (first due time in s, last in s, MB), with a message for each 100 kB."""
    described = [
        Segment(1, 0, number, "part", first_s * _SECOND, last_s * _SECOND, 10 * size_mb, size_mb * _MB)
        for number, (first_s, last_s, size_mb) in enumerate(segments)
    ]
    return Reach(SegmentCatalog(described), _MINUTE, max_mb * _MB)


def test_what_is_due_within_the_time_ahead_is_loaded_if_it_fits() -> None:
    assert reach((0, 120, 180)).onward(0, 0, 0) == _MINUTE
    # Few: up to two weeks ahead.
    assert reach((0, 7200, 10)).onward(0, 0, 0) == 14 * 24 * _HOUR


def test_only_half_of_the_bytes_are_loaded_in_one_piece_and_the_next_one_when_half_is_free() -> None:
    # 10 MB/s.
    dense = reach((0, 60, 600))
    assert 4 * _SECOND < dense.onward(0, 0, 0) <= 5 * _SECOND
    sparser = reach((0, 60, 300))
    assert 9 * _SECOND < sparser.onward(0, 0, 0) <= 10 * _SECOND
    assert 19 * _SECOND < sparser.onward(10 * _SECOND, 2 * _SECOND, 50 * _MB) <= 20 * _SECOND
    # More than half is held: the loaded messages are enough.
    assert sparser.onward(20 * _SECOND, 4 * _SECOND, 100 * _MB) == 20 * _SECOND


def test_what_is_due_within_seconds_is_loaded_however_much_it_is() -> None:
    flood = reach((0, 60, 60_000))
    assert flood.onward(0, 0, 0) == 5 * _SECOND
    assert flood.onward(5 * _SECOND, 4 * _SECOND, 5_000 * _MB) == 9 * _SECOND


def test_large_messages_behind_small_ones_do_not_shorten_the_load_of_these() -> None:
    small_first = reach((0, 30, 30), (30, 60, 30_000))
    assert 29 * _SECOND < small_first.onward(0, 0, 0) <= 31 * _SECOND


def test_few_messages_ahead_do_not_reach_over_many_bytes() -> None:
    # Nothing for an hour, and then more than fits, although it would not be worth a load.
    assert _MINUTE <= reach((3600, 3601, 50), max_mb=10).onward(0, 0, 0) <= _HOUR


def test_what_does_not_fit_after_a_seal_is_given_up_down_to_half_of_the_bytes() -> None:
    assert reach((0, 60, 90)).back(_MINUTE, 0) == _MINUTE
    assert 14 * _SECOND < reach((0, 60, 200)).back(_MINUTE, 0) <= 15 * _SECOND
    assert reach((0, 60, 60_000)).back(_MINUTE, 0) == 5 * _SECOND
    # It never loads by going back.
    assert reach((0, 60, 60_000)).back(2 * _SECOND, 0) == 2 * _SECOND


def test_a_load_far_ahead_is_given_up_where_much_was_sealed_into_it() -> None:
    # Worth more than two loads of 64 MB, and within the bytes.
    assert _MINUTE <= reach((0, 3600, 200), max_mb=1000).back(_HOUR, 0) < _HOUR


def steps(own: Reach, wanted_ms: int) -> list[int]:
    """Return the cutoffs by which all messages due before `wanted_ms` are staged."""
    cutoffs = [0]
    while cutoffs[-1] < wanted_ms:
        cutoffs.append(own.step(cutoffs[-1], wanted_ms))
        assert cutoffs[-2] < cutoffs[-1] <= wanted_ms
    return cutoffs


def test_what_fits_is_staged_at_once_and_more_in_pieces_of_half_the_bytes() -> None:
    assert steps(reach((0, 60, 50)), _MINUTE) == [0, _MINUTE]
    # 10 MB/s for a minute, a piece every five seconds, and then nothing for a day.
    day = 24 * _HOUR
    cutoffs = steps(reach((0, 60, 600)), day)
    assert all(4_990 < after - before <= 5_000 for before, after in pairwise(cutoffs[:12]))
    assert cutoffs[-1] == day
    assert len(cutoffs) <= 14


def test_only_what_is_due_at_one_millisecond_is_staged_together_whatever_it_takes() -> None:
    assert steps(reach((5, 5, 6_000), (6, 6, 6_000)), _MINUTE) == [0, 5_000, 5_001, 6_000, 6_001, _MINUTE]


def test_a_window_of_a_kilobyte_does_not_make_a_batch_for_each_message() -> None:
    own = Reach(reach((0, 60, 6)).catalog, _MINUTE, 1_024)
    assert len(steps(own, _MINUTE)) <= 8


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 400)), max_size=6))
def test_steps_reach_the_wanted_cutoff_and_none_takes_more_than_a_piece(bounds: list[tuple[int, int, int]]) -> None:
    segments = [(min(first, last), max(first, last), size) for first, last, size in bounds]
    own = reach(*segments)
    cutoffs = steps(own, 400 * _SECOND)
    assert cutoffs[-1] == 400 * _SECOND
    for before, after in pairwise(cutoffs):
        nbytes = due_in(own.catalog.overlapping(before, after), before, after)[1]
        assert nbytes <= 50 * _MB or after == before + 1
