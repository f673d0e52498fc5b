"""From the options of `delayline publish` to headers."""

from __future__ import annotations

import os
from typing import Any

import pytest

from conf.errors import BadDelayLevel, BadDeliverAfter, BadDeliverAt, BadDeliverTo, Rejected, TwoDelays
from conf.settings import HeaderSettings
from sources.intake.schedule_headers import schedule_headers

NAMES = HeaderSettings()


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        ({}, []),
        ({"after": "10s"}, [("deliver-after", b"10s")]),
        ({"at": "2026-12-24T18:00:00Z"}, [("deliver-at", b"2026-12-24T18:00:00Z")]),
        ({"level": "3", "to": "orders"}, [("delay-level", b"3"), ("deliver-to", b"orders")]),
    ],
)
def test_what_is_asked_for_is_sent_as_it_was_written(asked: dict[str, Any], headers: list[object]) -> None:
    assert schedule_headers(NAMES, **asked) == headers


def test_the_names_are_those_of_the_settings() -> None:
    names = HeaderSettings(deliver_after="x-delay", deliver_to="x-topic")
    assert schedule_headers(names, after="1s", to="a") == [("x-delay", b"1s"), ("x-topic", b"a")]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"after": "soon"}, BadDeliverAfter),
        ({"at": "tomorrow"}, BadDeliverAt),
        ({"at": "2026-12-24T18:00:00"}, BadDeliverAt),
        ({"level": "-1"}, BadDelayLevel),
        ({"to": ""}, BadDeliverTo),
        # As Python reads an argument that is not UTF-8.
        ({"after": "\udcff"}, BadDeliverAfter),
        ({"to": "\udcff"}, BadDeliverTo),
        ({"after": "1s", "level": "1"}, TwoDelays),
    ],
)
def test_each_unreadable_schedule_has_its_own_error_unless_unchecked(
    asked: dict[str, Any], error: type[Rejected]
) -> None:
    with pytest.raises(error):
        schedule_headers(NAMES, **asked)
    unchecked = schedule_headers(NAMES, **asked, checked=False)
    assert [os.fsdecode(value) for _, value in unchecked] == [*asked.values()]
