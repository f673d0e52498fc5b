from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.durations import format_duration, parse_duration_ms

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1500", 1500),
        ("1500ms", 1500),
        (" 10 s ", 10_000),
        ("1.5h", 5_400_000),
        ("30d", 2_592_000_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        ("1d 2h 3m 4.5s", 93_784_500),
        ("10min", 600_000),
        ("2 hours", 7_200_000),
        ("1 week 1 day", 691_200_000),
        ("90 seconds", 90_000),
        ("5millis", 5),
        ("PT1H30M", 5_400_000),
        ("PT10S", 10_000),
        ("PT0S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P2W", 1_209_600_000),
    ],
)
def test_each_form_of_a_duration_is_read(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1s",
        "+1s",
        "1.5",
        "1e3",
        "1,5s",
        "10 S",
        "1y",
        "P",
        "PT",
        "P1DT",
        "P1M",
        "P1Y",
        "-PT1S",
        "٣s",
        "1s2m",
        "1m1m",
        "1h30",
        "1hm",
        "1 month",
        "10mins!",
        "s10",
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)


@given(st.integers(0, 10**12), st.sampled_from(sorted(UNITS_MS)))
def test_whole_numbers_are_exact_in_every_unit(number: int, unit: str) -> None:
    assert parse_duration_ms(f"{number}{unit}") == number * UNITS_MS[unit]


@given(st.integers(0, 10**6), st.integers(0, 999_999_999), st.sampled_from(["ms", "s", "m"]))
def test_a_fraction_of_a_millisecond_is_rounded_up_and_never_down(whole: int, nanos: int, unit: str) -> None:
    exact_in_billionths = (whole * 10**9 + nanos) * UNITS_MS[unit]
    ms = parse_duration_ms(f"{whole}.{nanos:09d}{unit}")
    assert (ms - 1) * 10**9 < exact_in_billionths <= ms * 10**9


@given(st.text(max_size=30))
def test_any_text_gives_milliseconds_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration_ms(text) >= 0
    except ValueError as error:
        assert "duration" in str(error)  # noqa: PT017 - both outcomes are right, and nothing else is


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999.4, "999 ms"),
        (1_000, "1 s"),
        (1_500, "1.5 s"),
        (-1_500, "-1.5 s"),
        (12_340, "12 s"),
        (60_000, "1 min"),
        (90_000, "90 s"),
        (94_100, "94 s"),
        (754_321, "13 min"),
        (5_400_000, "90 min"),
        (7_200_000, "2 h"),
        (86_400_000, "1 day"),
        (93_600_000, "26 h"),
        (3 * 86_400_000 + 1, "3 days"),
        (366 * 86_400_000, "366 days"),
        (7 * 86_400_000, "1 week"),
        # Shown as 3.952w before.
        (2_390_169_600, "4 weeks"),
        (2_100_000_000, "3.5 weeks"),
    ],
)
def test_a_duration_is_shown_in_one_unit_that_people_use(ms: float, text: str) -> None:
    assert format_duration(ms) == text
