"""The table of changed clocks in the page about messages that repeat: the service and the judge say what comes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from state.repeats.rule import parse_rule
from state.repeats.zones import zone_named
from streaming.judge.schedules import instants_of
from tests.docs.documents import ROOT

ROW = re.compile(r"^\| ([\w/]*) ?\| `([^`]+)` \| (\d{4}-\d\d-\d\d), ([\d:]+) to ([\d:]+) \| ([\d:, +-]+) \|$", re.M)
ROWS = [match.groups() for match in ROW.finditer((ROOT / "docs/publish/repeating.md").read_text())]
DAY = timedelta(days=1)


def at(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


def shown(at_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone).isoformat(" ", "minutes")[5:]


def test_each_zone_is_there() -> None:
    zones = {"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"}
    assert {row[0] for row in ROWS} - {""} == zones
    assert len(ROWS) >= 2 * len(zones)


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_instants_are_those_that_come_from_the_midnight_before(number: int) -> None:
    _, cron, day, before, after, instants = ROWS[number]
    name = next(row[0] for row in ROWS[number::-1] if row[0])
    zone = zone_named(name)
    midnight = datetime.fromisoformat(day).replace(tzinfo=zone)
    # The clock shows `before` when it is changed to `after`.
    change = next(
        minute
        for minute in (midnight.astimezone(UTC) + timedelta(minutes=each) for each in range(24 * 60))
        if minute.astimezone(zone).utcoffset() != midnight.utcoffset()
    )
    offset = midnight.utcoffset()
    assert offset is not None
    assert [f"{each:%H:%M}" for each in (change + offset, change.astimezone(zone))] == [before, after]
    expected, at_ms = instants.split(", "), at(midnight) - 1
    found: list[str] = []
    while len(found) < len(expected):
        next_ms = parse_rule(cron, name).after(at_ms)
        assert next_ms is not None
        at_ms = next_ms
        found.append(shown(at_ms, zone))
    assert found == expected
    judged = instants_of(cron, name, at(midnight), at_ms + 1)
    assert [shown(each, ZoneInfo(name)) for each in judged] == expected
