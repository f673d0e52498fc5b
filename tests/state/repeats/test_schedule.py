from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.repeats.rule import Rule, parse_rule
from state.repeats.schedule import ALL, MISSED, NONE, ONE, Occurrence, Schedule

MINUTE = 60_000
HORIZON = 5 * MINUTE
EVERY = Rule(interval_ms=10 * MINUTE)


def coming(schedule: Schedule, first_ms: int, clock_ms: int, end_ms: int, number: int = 2) -> list[Occurrence]:
    """Return the occurrences before `end_ms`, and the next one. The first one waits, and a batch has this clock."""
    found = []
    for each in schedule.coming(Occurrence(number, first_ms), first_ms < clock_ms - HORIZON, clock_ms):
        found.append(each)
        if each.at_ms >= end_ms:
            break
    return found


def dues(schedule: Schedule, first_ms: int, clock_ms: int, end_ms: int, number: int = 2) -> list[int]:
    found = coming(schedule, first_ms, clock_ms, end_ms, number)
    assert [each.number for each in found] == list(range(number, number + len(found)))
    return [each.at_ms // MINUTE for each in found]


@pytest.mark.parametrize(
    ("missed", "expected"), [(ONE, [10, 60, 70]), (ALL, [10, 20, 30, 40, 50, 60, 70]), (NONE, [60, 70])]
)
def test_occurrences_that_were_missed_come_as_the_schedule_says(missed: str, expected: list[int]) -> None:
    schedule = Schedule(EVERY, missed=missed)
    assert dues(schedule, 10 * MINUTE, 55 * MINUTE, 65 * MINUTE) == expected


@pytest.mark.parametrize("missed", MISSED)
def test_nothing_is_missed_while_the_job_runs(missed: str) -> None:
    schedule = Schedule(EVERY, missed=missed)
    assert dues(schedule, 10 * MINUTE, 9 * MINUTE, 15 * MINUTE) == [10, 20]
    assert dues(schedule, 10 * MINUTE, 10 * MINUTE, 35 * MINUTE) == [10, 20, 30, 40]


@pytest.mark.parametrize("missed", MISSED)
def test_nothing_is_missed_that_a_batch_stages_late_by_less_than_the_horizon(missed: str) -> None:
    """A slow batch, or a restart: the occurrences come late, each of them."""
    schedule = Schedule(Rule(interval_ms=MINUTE), missed=missed)
    assert dues(schedule, 10 * MINUTE, 15 * MINUTE, 16 * MINUTE) == [10, 11, 12, 13, 14, 15, 16]
    late = dues(schedule, 10 * MINUTE, 15 * MINUTE + 1, 16 * MINUTE)
    assert late == {ONE: [10, 16], NONE: [16], ALL: [10, 11, 12, 13, 14, 15, 16]}[missed]


def test_first_occurrence_comes_however_late() -> None:
    assert dues(Schedule(EVERY, missed=NONE), 10 * MINUTE, 55 * MINUTE, 56 * MINUTE, number=1) == [10, 60]


def test_cutoff_behind_the_clock() -> None:
    """Where much is due after an outage, the cutoff goes on in steps: nothing comes twice."""
    assert dues(Schedule(EVERY), 10 * MINUTE, 55 * MINUTE, 25 * MINUTE) == [10, 60]
    assert dues(Schedule(EVERY, missed=ALL), 10 * MINUTE, 55 * MINUTE, 25 * MINUTE) == [10, 20, 30]
    assert dues(Schedule(EVERY, missed=NONE), 10 * MINUTE, 55 * MINUTE, 25 * MINUTE) == [60]


def test_each_occurrence_of_an_outage_of_years_comes() -> None:
    year = 366 * 24 * 60 * MINUTE
    found = coming(Schedule(EVERY, missed=ALL), 0, year, year, number=1)
    assert (len(found), found[-1].at_ms) == (366 * 24 * 6 + 1, year)


def test_it_ends() -> None:
    assert dues(Schedule(EVERY, count=3), 10 * MINUTE, 0, 15 * MINUTE, number=3) == [10]
    assert dues(Schedule(EVERY, count=3), 10 * MINUTE, 0, 15 * MINUTE, number=2) == [10, 20]
    assert dues(Schedule(EVERY, until_ms=20 * MINUTE), 10 * MINUTE, 0, 99 * MINUTE) == [10, 20]
    assert dues(Schedule(EVERY, until_ms=20 * MINUTE - 1), 10 * MINUTE, 0, 15 * MINUTE) == [10]
    assert dues(Schedule(EVERY, until_ms=50 * MINUTE, missed=NONE), 10 * MINUTE, 55 * MINUTE, 99 * MINUTE) == []


@given(
    st.sampled_from(MISSED),
    st.integers(1, 40),
    st.none() | st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30)), max_size=12),
)
def test_batches_stage_each_occurrence_once_and_in_order(
    missed: str, interval: int, count: int | None, steps: list[tuple[int, int]]
) -> None:
    """However far apart batches are, and however far ahead they stage."""
    schedule = Schedule(Rule(interval_ms=interval), count=count, missed=missed)
    waiting: Occurrence | None = Occurrence(1, 5)
    found: list[Occurrence] = []
    clock_ms = cutoff_ms = 0
    for after_ms, horizon_ms in steps:
        clock_ms += after_ms
        cutoff_ms = max(cutoff_ms, clock_ms + horizon_ms)
        if waiting is not None and waiting.at_ms < cutoff_ms:
            missed_before_ms, first_ms, number = clock_ms - horizon_ms, waiting.at_ms, waiting.number
            several = schedule.coming(waiting, first_ms < missed_before_ms, clock_ms)
            staged = []
            for waiting in several:
                if waiting.at_ms >= cutoff_ms:
                    break
                staged.append(waiting)
            else:
                waiting = None
            found += staged
            if first_ms >= missed_before_ms:
                instants = range(first_ms, cutoff_ms, interval)
                left = None if count is None else count - number + 1
                assert [each.at_ms for each in staged] == list(instants)[:left]
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert all(second.at_ms > first.at_ms for first, second in pairwise(found))
    assert all((each.at_ms - 5) % interval == 0 for each in found)
    assert count is None or len(found) <= count
    if missed == ALL and found:
        assert [each.at_ms for each in found] == list(range(5, found[-1].at_ms + 1, interval))


@pytest.mark.parametrize("missed", [ONE, NONE])
def test_what_was_missed_stays_so_while_a_bound_puts_the_first_one_off(missed: str) -> None:
    schedule = Schedule(EVERY, missed=missed)
    first = next(schedule.coming(Occurrence(1, 10 * MINUTE), True, 55 * MINUTE))
    found = islice(schedule.coming(first, False, 75 * MINUTE), 3)
    assert [(each.number, each.at_ms // MINUTE) for each in found] == [(1, 10), (2, 60), (3, 70)]
    found = islice(schedule.coming(first, True, 75 * MINUTE), 3)
    assert [(each.number, each.at_ms // MINUTE) for each in found] == [(1, 10), (2, 80), (3, 90)]


@given(st.integers(1, 2**31), st.integers(0, 2**50), st.integers(0, 2**50), st.none() | st.integers(0, 2**50))
def test_number_says_until_when_it_waits(number: int, at_ms: int, longer_ms: int, next_from_ms: int | None) -> None:
    occurrence = Occurrence(number, at_ms, next_from_ms)
    for until_ms in (at_ms, at_ms + longer_ms):
        assert Occurrence.from_bytes(occurrence.to_bytes(until_ms), until_ms) == occurrence


@given(
    st.sampled_from([EVERY, parse_rule("0 9 * * MON-FRI", "Europe/Berlin"), parse_rule("*/30 * * * * *")]),
    st.none() | st.integers(0, 2**60),
    st.none() | st.integers(1, 2**31),
    st.sampled_from(MISSED),
    st.binary(max_size=16),
    st.booleans(),
)
def test_header_has_all_of_it(
    rule: Rule, until_ms: int | None, count: int | None, missed: str, name: bytes, keeps: bool
) -> None:
    schedule = Schedule(rule, until_ms, count, missed, name, keeps)
    assert Schedule.from_bytes(schedule.to_bytes()) == schedule


@pytest.mark.parametrize("count", [None, 2**31])
def test_what_comes_later_has_the_number_that_it_has_if_all_came(count: int | None) -> None:
    # Three million searches would take longer than a test may.
    often, year_ms = Schedule(parse_rule("*/10 * * * * *"), count=count), 365 * 24 * 60 * MINUTE
    for from_ms in (0, 1, 5 * MINUTE, year_ms, year_ms + 1):
        (first,) = islice(often.later(Occurrence(1, 0), from_ms), 1)
        assert first == Occurrence(1 - (-from_ms // 10_000), -(-from_ms // 10_000) * 10_000)
    seldom = Schedule(parse_rule("0 9 * * *"), count=count)
    (first,) = islice(seldom.later(Occurrence(1, 9 * 60 * MINUTE), year_ms), 1)
    assert first == Occurrence(366, year_ms + 9 * 60 * MINUTE)


def test_what_comes_later_ends_with_the_schedule() -> None:
    rule = parse_rule("* * * * *")
    later = Schedule(rule, count=1_000_000).later(Occurrence(1, 0), 999_998 * MINUTE)
    assert list(later) == [Occurrence(number + 1, number * MINUTE) for number in (999_998, 999_999)]
    assert list(Schedule(rule, count=1_000_000).later(Occurrence(1, 0), 1_000_000 * MINUTE)) == []
    assert list(Schedule(rule, until_ms=999_999 * MINUTE - 1).later(Occurrence(1, 0), 999_999 * MINUTE)) == []


def test_what_comes_later_goes_on_from_where_the_next_one_comes_after_a_missed_one() -> None:
    schedule = Schedule(parse_rule("*/10 * * * *"))
    waiting = Occurrence(4, 10 * MINUTE, 55 * MINUTE)
    for from_ms in (20 * MINUTE, 60 * MINUTE, 75 * MINUTE):
        expected = [each for each in islice(schedule.coming(waiting, False, 0), 9) if each.at_ms >= from_ms]
        assert list(islice(schedule.later(waiting, from_ms), len(expected))) == expected


def test_what_comes_later_counts_instants_that_clock_changes_add() -> None:
    """The clock of Lord Howe is changed by half an hour. Twice a year, two times that it shows are as close as that."""
    schedule, year_ms = Schedule(parse_rule("45 * * * *", "Australia/Lord_Howe")), 365 * 24 * 60 * MINUTE
    start_ms = schedule.rule.after(1_798_000_000_000)
    assert start_ms is not None
    (after_a_year,) = islice(schedule.coming(Occurrence(1, start_ms), False, 0), 8_761, 8_762)
    assert after_a_year.at_ms == start_ms + year_ms
    (first,) = islice(schedule.later(Occurrence(1, start_ms), start_ms + year_ms), 1)
    assert first == after_a_year
