"""The headers for the options of `delayline publish`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from conf.rejected import BadDelayLevel, BadDeliverAfter, BadDeliverAt, BadDeliverTo, Rejected, TwoDelays
from conf.sections import HeaderSettings
from sources.intake.schedule_headers import schedule_headers

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
