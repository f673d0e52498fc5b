"""The headers for the options of `delayline publish`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from conf.rejected import BadDelayLevel, BadDeliverAfter, BadDeliverAt, BadDeliverTo, BadRepeat, Rejected, TwoDelays
from conf.sections import HeaderSettings, LevelSettings
from sources.intake.schedule_headers import next_instants, repeat_headers, schedule_headers, start_ms

NAMES = HeaderSettings()


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({}, []),
        ({"after": "10s"}, [("deliver-after", b"10s")]),
        ({"at": "2026-12-24T18:00:00Z"}, [("deliver-at", b"2026-12-24T18:00:00Z")]),
        ({"level": "3", "to": "orders"}, [("delay-level", b"3"), ("deliver-to", b"orders")]),
    ],
)
def test_an_option_is_sent_as_it_was_written(options: dict[str, Any], headers: list[object]) -> None:
    assert schedule_headers(NAMES, **options) == headers


def test_the_header_names_come_from_the_settings() -> None:
    names = HeaderSettings(deliver_after="x-delay", deliver_to="x-topic")
    assert schedule_headers(names, after="1s", to="a") == [("x-delay", b"1s"), ("x-topic", b"a")]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"after": "soon"}, BadDeliverAfter),
        ({"at": "tomorrow"}, BadDeliverAt),
        ({"at": "2026-12-24T18:00:00"}, BadDeliverAt),
        ({"level": "-1"}, BadDelayLevel),
        ({"to": ""}, BadDeliverTo),
        # Python reads a byte that is not UTF-8 in an argument as such a surrogate.
        ({"after": "\udcff"}, BadDeliverAfter),
        ({"to": "\udcff"}, BadDeliverTo),
        ({"after": "1s", "level": "1"}, TwoDelays),
    ],
)
def test_each_unreadable_schedule_has_its_own_error_unless_unchecked(
    options: dict[str, Any], error: type[Rejected]
) -> None:
    with pytest.raises(error):
        schedule_headers(NAMES, **options)
    unchecked = schedule_headers(NAMES, **options, checked=False)
    assert [os.fsdecode(value) for _, value in unchecked] == [*options.values()]


@pytest.mark.parametrize("rule", ["every 10m", "*/10 * * * *"])
def test_next_instants_end_with_the_schedule_and_without_any_it_is_refused(rule: str) -> None:
    minute, now_ms = 60_000, 1_798_000_200_000

    def instants(after_ms: int) -> list[int]:
        found = next_instants(repeat_headers(rule, until=str(now_ms + after_ms)), None, now_ms)
        return [each - now_ms for each in found]

    assert instants(60 * minute) == [10 * minute, 20 * minute, 30 * minute]
    assert instants(10 * minute) == [10 * minute]
    with pytest.raises(BadRepeat, match="has no occurrence before it ends"):
        instants(10 * minute - 1)


@pytest.mark.parametrize(
    ("rule", "delay", "expected"),
    [
        ("every 10m", {"after": "1m"}, [1, 11, 21]),
        ("every 10m", {"at": "1798000260000"}, [1, 11, 21]),
        ("every 10m", {"level": "5"}, [1, 11, 21]),
        ("every 10m", {"after": "0"}, [0, 10, 20]),
        ("*/10 * * * *", {"after": "1m"}, [10, 20, 30]),
        ("*/10 * * * *", {"after": "10m"}, [10, 20, 30]),
        # Those that are missed by then do not all come.
        ("every 10m", {"at": "0"}, []),
        ("every 10m", {"after": "31m"}, None),
        ("*/10 * * * *", {"after": "31m"}, None),
    ],
)
def test_first_occurrence_comes_by_the_delay_and_before_the_end(
    rule: str, delay: dict[str, str], expected: list[int] | None
) -> None:
    minute, now_ms = 60_000, 1_798_000_200_000
    options: dict[str, str | None] = {"after": None, "at": None, "level": None, **delay}
    headers = repeat_headers(rule, until=str(now_ms + 30 * minute))
    due_ms = start_ms(**options, levels_ms=LevelSettings().delays, now_ms=now_ms)
    if expected is None:
        with pytest.raises(BadRepeat, match="has no occurrence before it ends"):
            next_instants(headers, due_ms, now_ms)
    else:
        assert [(each - now_ms) // minute for each in next_instants(headers, due_ms, now_ms)] == expected
