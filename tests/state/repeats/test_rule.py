from __future__ import annotations

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ZoneMissing
from state.repeats.rule import Rule, _comes, parse_rule
from state.repeats.zones import zone_named, zone_names
from streaming.judge.schedules import instants_of
from tests.thorough import examples

HOUR_MS = 3_600_000
# Around a change of the clock, in UTC; and leap days.
BORDERS = {
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00", "2028-02-29T00:00"),
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00", "2100-02-28T12:00"),
    "Australia/Lord_Howe": ("2026-10-03T15:30", "2026-04-04T15:00"),
    "Africa/Casablanca": ("2026-02-15T02:00", "2026-03-22T02:00"),
    "UTC": ("2028-02-28T12:00",),
}
PLACES = [(zone, border) for zone, several in BORDERS.items() for border in several]
MINUTES = st.sampled_from(["0", "15", "30", "*/20", "45", "10-50/7", "1,31", "*"])
HOURS = st.sampled_from(["0", "1", "2", "3", "*", "*/2", "0-5", "1,2", "2-3"])
DAYS, MONTHS = st.sampled_from(["*", "29", "1-7", "*/2"]), st.sampled_from(["*", "2,3,4,10,11"])
WEEKDAYS = st.sampled_from(["*", "SUN", "1-5"])


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def coming(rule: Rule, start_ms: int, end_ms: int) -> list[int]:
    """Return the instants after `start_ms`, and before `end_ms`."""
    found: list[int] = []
    at_ms = rule.after(start_ms)
    while at_ms is not None and at_ms < end_ms:
        found.append(at_ms)
        at_ms = rule.after(at_ms)
    return found


def shown(rule: Rule, start: str, count: int) -> list[str]:
    zone, at_ms, found = zone_named(rule.zone), ms(start), []
    for _ in range(count):
        next_ms = rule.after(at_ms)
        assert next_ms is not None
        at_ms = next_ms
        found.append(datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone).isoformat()[5:])
    return found


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(PLACES), MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS, st.integers(0, 12 * 3_600))
def test_instants_are_those_that_the_judge_finds_minute_by_minute(
    place: tuple[str, str], minute: str, hour: str, day: str, month: str, weekday: str, before_s: int
) -> None:
    zone, border = place
    cron, start_ms = f"{minute} {hour} {day} {month} {weekday}", ms(border) - before_s * 1000
    end_ms = ms(border) + 8 * HOUR_MS
    assert coming(parse_rule(cron, zone), start_ms, end_ms) == list(instants_of(cron, zone, start_ms + 1, end_ms))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*PLACES, ("Pacific/Apia", "2011-12-30T10:00")]),
    MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS, st.integers(0, 3 * 86_400), st.integers(0, 3 * 86_400_000),
)  # fmt: skip
def test_the_count_of_instants_is_that_of_single_steps(
    place: tuple[str, str], minute: str, hour: str, day: str, month: str, weekday: str, before_s: int, after_ms: int
) -> None:
    """Also where a zone leaves out a whole day."""
    zone, border = place
    rule = parse_rule(f"{minute} {hour} {day} {month} {weekday}", zone)
    start_ms, end_ms = ms(border) - before_s * 1000, ms(border) + after_ms
    assert rule.count(start_ms + 1, end_ms) == len(coming(rule, start_ms, end_ms))


def test_the_last_instants_of_the_calendar_are_counted() -> None:
    rule = parse_rule("30 * * * *", "America/New_York")
    start_ms, end_ms = ms("9999-12-31T12:00"), ms("9999-12-31T23:59")
    assert rule.count(start_ms, end_ms) == len(coming(rule, start_ms - 1, end_ms)) == 12


def test_the_judge_knows_other_zones_by_the_same_name() -> None:
    """The judge reads the host's zones, if the host has any."""
    for zone in BORDERS:
        for border in ("2026-01-01T00:00", "2026-07-01T00:00"):
            at = datetime.fromtimestamp(ms(border) / 1000, UTC)
            assert at.astimezone(ZoneInfo(zone)).utcoffset() == at.astimezone(zone_named(zone)).utcoffset()


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29T03:00:00+02:00", "03-30T02:30:00+02:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25T02:30:00+02:00", "10-26T02:30:00+01:00"]),
        ("0 30 2 * * *", "America/New_York", "2026-03-08T05:00", ["03-08T03:00:00-04:00", "03-09T02:30:00-04:00"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00", ["11-01T01:30:00-04:00", "11-02T01:30:00-05:00"]),
        ("30 * * * *", "America/New_York", "2026-11-01T05:00", ["11-01T01:30:00-04:00", "11-01T01:30:00-05:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T10:00", ["10-04T02:30:00+11:00", "10-05T02:15:00+11:00"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T10:00", ["04-05T01:45:00+11:00", "04-06T01:45:00+10:30"]),
        ("30 * * * *", "Australia/Lord_Howe", "2026-10-03T15:00", ["10-04T02:30:00+11:00", "10-04T03:30:00+11:00"]),
        ("30 2 * * *", "Africa/Casablanca", "2026-02-14T12:00", ["02-15T02:30:00+01:00", "02-16T02:30:00+00:00"]),
        ("30 2 * * *", "Africa/Casablanca", "2026-03-21T12:00", ["03-22T03:00:00+01:00", "03-23T02:30:00+01:00"]),
    ],
)
def test_clock_that_is_changed(cron: str, zone: str, start: str, expected: list[str]) -> None:
    assert shown(parse_rule(cron, zone), start, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "least_s"),
    [
        ("3-3/2 * * * *", 3_600), ("03-3/020 * * * *", 3_600), ("5 9-9/1 * * *", 86_400),
        ("0 0 9 * * MON-1/2,fri-5/2", 86_400), ("1,3-3/2 * * * *", 120), ("3-4/2 * * * *", 3_600),
    ],
)  # fmt: skip
def test_a_step_adds_nothing_to_a_range_of_one_value(cron: str, least_s: int) -> None:
    assert parse_rule(cron).shortest_ms == 1_000 * least_s


def test_a_weekday_as_a_range_with_a_step_is_one_day() -> None:
    days = [
        datetime.fromtimestamp(at / 1000, UTC).weekday()
        for at in coming(parse_rule("0 9 * * MON-1/2"), 0, 30 * 86_400_000)
    ]
    assert {*days} == {0}


def test_leap_days_come_every_four_years() -> None:
    rule = parse_rule("0 0 29 2 *")
    assert [each[:5] for each in shown(rule, "2096-01-01T00:00", 2)] == ["02-29", "02-29"]
    years = [
        datetime.fromtimestamp(at / 1000, UTC).year
        for at in coming(rule, ms("2090-01-01T00:00"), ms("2110-01-01T00:00"))
    ]
    assert years == [2092, 2096, 2104, 2108]


@given(st.integers(1, 10**9), st.integers(0, 10**13), st.integers(-(10**10), 10**12))
def test_interval_goes_on_from_the_last_instant(interval_ms: int, at_ms: int, later_ms: int) -> None:
    rule = Rule(interval_ms=interval_ms)
    assert rule.after(at_ms) == at_ms + interval_ms
    next_ms = rule.after(at_ms, at_ms + later_ms)
    assert next_ms is not None
    assert next_ms >= at_ms + max(1, later_ms)
    assert (next_ms - at_ms) % interval_ms == 0
    assert next_ms - interval_ms < at_ms + max(1, later_ms)


@pytest.mark.parametrize(
    ("text", "least_s"),
    [
        ("every 10m", 600), ("@every 1h30m", 5_400), ("PT10M", 600), ("@hourly", 3_600), ("@weekly", 86_400),
        ("*/5 * * * * *", 5), ("*/7 * * * *", 240), ("0 9 * * MON-FRI", 86_400), ("0,59 * * * *", 60),
    ],
)  # fmt: skip
def test_shortest_time_between_two(text: str, least_s: int) -> None:
    assert parse_rule(text).shortest_ms == least_s * 1000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("every 10m", "every 10m"), ("PT1H30M", "every 90m"), ("every 1500ms", "every 1500ms"),
        ("every 7d", "every 1w"), ("@hourly", "0 * * * *"), ("0 9 * * mon-fri", "0 9 * * MON-FRI"),
    ],
)  # fmt: skip
def test_a_rule_is_shown_as_publishers_write_it(text: str, shown: str) -> None:
    assert str(parse_rule(text)) == shown
    assert parse_rule(shown) == parse_rule(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "every", "every 0s", "every -1m", "every 1 month", "10m", "P1M", "* * * *", "* * * * * * *", "60 * * * *",
        "0 0 31 2 *", "0 0 */31 * 1#2", "@reboot", "a b c d e", "0 0 ? * *", "* * * * ²", "1" * 900 + " * * * *",
        "0 0 1 1 * \x00", "every 10m; every 20m", "*/0 * * * *", "5-1 * * * *",
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, each says something else
        parse_rule(text)


def test_an_expression_that_never_comes_is_searched_for_once() -> None:
    # Another test may have searched for it.
    _comes.cache_clear()
    for text in ("0 0 */29 2 1#5", "0 0 */29 2 1#5", "5 3 */29 2 1#5", "0-30 5  3 */29 2 1#5"):
        with pytest.raises(ValueError, match=r"never comes"):
            parse_rule(text)
    assert _comes.cache_info().misses == 1


@given(st.text(max_size=60) | st.from_regex(r"[0-9*,/#LW-]{1,6}( [0-9*,/#LWA-Z-]{1,6}){4,5}", fullmatch=True))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except ValueError:
        return
    assert rule.shortest_ms > 0
    assert rule.after(ms("2026-01-01T00:00")) is not None


@pytest.mark.parametrize("zone", ["", "Europe/Atlantis", "../etc/passwd", "europe/berlin", "CET+1", "/UTC"])
def test_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        parse_rule("0 9 * * *", zone)
    assert "Europe/Berlin" in zone_names()


def test_zone_that_is_gone_since_is_an_error_that_names_it() -> None:
    with pytest.raises(ZoneMissing, match=r"Europe/Atlantis, which tzdata \d+"):
        Rule(cron="0 9 * * *", zone="Europe/Atlantis").after(0)


def test_interval_has_no_zone() -> None:
    with pytest.raises(ValueError, match="cron"):
        parse_rule("every 10m", "Europe/Berlin")


def test_calendar_ends() -> None:
    assert parse_rule("0 0 1 1 *").after(ms("9999-06-01T00:00")) is None
    assert parse_rule("30 * * * *", "Europe/Berlin").after(ms("9999-12-31T23:59")) is None
    assert json.dumps(str(parse_rule("0 9 * * mon", "Europe/Berlin"))) == '"0 9 * * MON (Europe/Berlin)"'
