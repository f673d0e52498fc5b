from __future__ import annotations

from state.buckets.catalog import SegmentCatalog
from state.buckets.reach import Reach
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
    # More than half is held: what is loaded is enough.
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
