from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.rejected import BadDelayLevel, BadDeliverAfter, BadDeliverAt, BadDeliverTo, Rejected
from conf.sections import LevelSettings
from sources.intake.schedule import (
    MAX_INSTANT_MS,
    level_delay_ms,
    parse_delay_level,
    parse_deliver_after,
    parse_deliver_at,
    parse_deliver_to,
)
from tests.thorough import examples

ROCKETMQ = LevelSettings().delays
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_S = 1_798_135_200
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (b"0", 0),
        (b" 1798135200000 ", 1_798_135_200_000),
        (b"0" * 50 + b"1798135200000", 1_798_135_200_000),
        (b"1000000000000", 1_000_000_000_000),
        (b"99999999999999", 99_999_999_999_999),
        # The year 9999, and others that stand for "never".
        (b"253402300799999", 253_402_300_799_999),
        (b"9007199254740991", 2**53 - 1),
        (b"9223372036854775807", MAX_INSTANT_MS),
        (b"9" * 40, MAX_INSTANT_MS),
        (b'"1798135200000"', 1_798_135_200_000),
        (b'"2026-12-24T18:00:00Z"', 1_798_135_200_000),
        (b"2026-12-24T18:00:00Z", 1_798_135_200_000),
        (b"2026-12-24T19:30:00+01:30", 1_798_135_200_000),
        (b"2026-12-24 18:00:00.250+00:00", 1_798_135_200_250),
        (b"1970-01-01T00:00:00Z", 0),
        # RFC 3339 has small letters too.
        (b"2026-12-24t18:00:00z", 1_798_135_200_000),
        # Java's ZonedDateTime.toString(), and its OffsetDateTime.MAX of the year 9999.
        (b"2026-12-24T19:00+01:00[Europe/Berlin]", 1_798_135_200_000),
        (b"2026-12-24T18:00Z[UTC]", 1_798_135_200_000),
        (b'"2026-12-24T18:00:00.000000001Z[Etc/GMT+0]"', 1_798_135_200_001),
        (b"9999-12-31T23:59:59.999999999Z", 253_402_300_800_000),
        (b"9999-12-31T23:59:59.999-14:00", 253_402_351_199_999),
    ],
)
def test_deliver_at_is_epoch_ms_or_iso_with_an_offset(text: bytes, ms: int) -> None:
    assert parse_deliver_at(text) == ms


@pytest.mark.parametrize("fraction", ["0001", "000001", "000000001", "000000100"])
def test_a_part_of_a_millisecond_is_rounded_up_so_that_nothing_is_early(fraction: str) -> None:
    assert parse_deliver_at(f"2026-12-24T18:00:00.{fraction}Z".encode()) == 1_798_135_200_001


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=OFFSETS))
@settings(max_examples=examples(100))
def test_deliver_at_is_never_before_the_written_instant_and_less_than_1_ms_after_it(
    instant: datetime,
) -> None:
    parsed = EPOCH + timedelta(milliseconds=parse_deliver_at(instant.isoformat().encode()))
    assert timedelta(0) <= parsed - instant < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\x00",
        b"\xff\xfe",
        b"tomorrow",
        b"-1",
        b"+1",
        b"1.5",
        b"1e12",
        "١٢٣".encode(),
        b"2026-12-24",
        b"2026-12-24T18:00:00",
        b"2026-02-30T00:00:00Z",
        b"1969-12-31T23:59:59.999Z",
        b"0001-01-01T00:00:00+14:00",
        b"2026-12-24T19:00[Europe/Berlin]",
        b"2026-12-24T19:00+01:00[]",
        b"2026-12-24T19:00+01:00[Europe/Berlin",
        b"1798135200000[Europe/Berlin]",
    ],
)
def test_any_other_deliver_at_is_refused(value: bytes | None) -> None:
    with pytest.raises(BadDeliverAt, match="deliver-at is epoch ms or ISO-8601"):
        parse_deliver_at(value)


@pytest.mark.parametrize(
    ("value", "slip"),
    [
        (b"1798135200", "'1798135200' is seconds by its size; write milliseconds"),
        (b"179813520", "seconds by its size"),
        (b"0001798135200", "seconds by its size"),
        (b"60000", "a delay goes into deliver-after: '60000' is before September 2001 as epoch ms. Is it a delay\\?"),
        (b"5", "'5' is before September 2001 as epoch ms"),
        (b"99999999999", "is before September 2001 as epoch ms"),
        (b"999999999999", "is before September 2001 as epoch ms"),
        (b"1798135200000000", "'1798135200000000' is microseconds by its size; write milliseconds"),
        (b"1798135200000000000", "is nanoseconds by its size"),
        (b"9" * 600_000, "has 600000 bytes, more than 1024"),
        ((1_798_135_200_000).to_bytes(8), "is binary, perhaps the number 1798135200000: write it as text"),
        ((30_000).to_bytes(4), "is binary, perhaps the number 30000: write it as text"),
    ],
)
def test_a_slip_of_a_publisher_is_named(value: bytes, slip: str) -> None:
    with pytest.raises(BadDeliverAt, match=slip) as refused:
        parse_deliver_at(value)
    assert len(str(refused.value)) < 250


@given(
    st.one_of(
        st.integers(0, 2**70),
        # Near the bounds of each unit.
        st.builds(lambda base, unit, by: base * unit + by, st.sampled_from([10**6, 10**9, NOW_S, 7_258_118_400]),
                  st.sampled_from([1, 10**3, 10**6, 10**9]), st.integers(-2, 2)),
    )
)  # fmt: skip
def test_a_number_is_0_or_the_instant_that_it_is_in_epoch_ms_or_refused_as_that_of_another_unit(number: int) -> None:
    try:
        parsed = parse_deliver_at(b"%d" % number)
    except BadDeliverAt:
        units = [number * 1_000, number // 1_000, number // 10**6]
        assert 0 < number < 10**12 or any(10**12 <= ms < 7_258_118_400_000 for ms in units)
    else:
        assert parsed == min(number, MAX_INSTANT_MS)
        assert number == 0 or number >= 10**12, "a delay, or seconds"
        assert number not in (NOW_S * 10**6, NOW_S * 10**9)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(9999, 12, 30), timezones=OFFSETS),
    st.sampled_from(["", "[Europe/Berlin]", "[UTC]", "[Etc/GMT-1]", "[GMT+01:00]", "[America/Port-au-Prince]"]),
    st.booleans(),
)
def test_a_zone_behind_the_offset_and_the_case_of_letters_change_nothing(
    instant: datetime, zone: str, is_lower: bool
) -> None:
    text = instant.isoformat()
    written = (text.lower() if is_lower else text) + zone
    assert parse_deliver_at(written.encode()) == parse_deliver_at(text.encode())


def test_deliver_after_is_a_duration_in_each_form() -> None:
    assert [parse_deliver_after(text) for text in (b"1500", b"1500ms", b"10s", b"PT10S", b"0")] == [
        1500,
        1500,
        10_000,
        10_000,
        0,
    ]
    assert parse_deliver_after(b"999999999999999999d") == MAX_INSTANT_MS
    # As Spring's JSON header mapper writes it.
    assert parse_deliver_after(b'"10s"') == 10_000


@pytest.mark.parametrize("value", [None, b"", b"-1s", b"soon", b"\xff", b"1 y", b"10s\x00"])
def test_any_other_deliver_after_is_refused(value: bytes | None) -> None:
    with pytest.raises(BadDeliverAfter, match="deliver-after is ms"):
        parse_deliver_after(value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (b"0", 0),
        (b"1", 1_000),
        (b"5", 60_000),
        (b"18", 7_200_000),
        (b"19", 7_200_000),
        (b"9" * 1_024, 7_200_000),
    ],
)
def test_levels_are_rocketmqs_and_a_higher_level_is_the_last(text: bytes, ms: int) -> None:
    assert level_delay_ms(parse_delay_level(text), ROCKETMQ) == ms


@pytest.mark.parametrize("value", [None, b"", b"-1", b"1.0", b"three", "²".encode(), b"\xff"])
def test_any_other_level_is_refused(value: bytes | None) -> None:
    with pytest.raises(BadDelayLevel, match="delay-level is 0"):
        parse_delay_level(value)


def test_deliver_to_names_a_topic() -> None:
    assert parse_deliver_to(b" orders.v1_x-y ") == "orders.v1_x-y"
    assert parse_deliver_to(b"t" * 249) == "t" * 249


@pytest.mark.parametrize("value", [None, b"", b"  ", b"a b", b"\xff", b"a\x00", b"..", b"t" * 250, "ö".encode()])
def test_a_value_that_cannot_be_a_topic_is_refused(value: bytes | None) -> None:
    with pytest.raises(BadDeliverTo, match="deliver-to names a topic"):
        parse_deliver_to(value)


@given(
    st.sampled_from([parse_deliver_at, parse_deliver_after, parse_delay_level, parse_deliver_to]),
    st.one_of(st.binary(min_size=1, max_size=40), st.text(min_size=1, max_size=30).map(str.encode)),
    st.sampled_from([1, 30, 500, 100_000]),
)
@settings(max_examples=examples(300))
def test_an_error_quotes_little_of_a_value_however_long_that_is(parse: Any, value: bytes, times: int) -> None:
    try:
        parse(value * times)
    except Rejected as error:
        # Ten bytes for a character, as `repr` writes one that cannot be printed.
        assert len(Exception.__str__(error)) < 800  # noqa: PT017 - both outcomes are right


@given(st.one_of(st.binary(max_size=40), st.text(max_size=30).map(lambda text: text.encode("utf-8"))))
@settings(max_examples=examples(200))
def test_any_bytes_give_a_number_or_a_rejection_with_its_code(value: bytes) -> None:
    for parse in (parse_deliver_at, parse_deliver_after, parse_delay_level):
        try:
            assert 0 <= parse(value) <= MAX_INSTANT_MS
        except Rejected as error:
            assert str(error).startswith(error.code)  # noqa: PT017 - both outcomes are right, and nothing else is
