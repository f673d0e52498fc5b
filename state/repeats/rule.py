"""When something comes again: after an interval, or by a cron expression in a time zone.

A cron expression names times of a wall clock. A time that the clock skips comes when the clock is set forward. A time
that it shows twice comes once, at the first. But if the field of the hour is `*`, the expression continues through the
repeated hour. Such an expression follows the clock in both directions, as it has no time of its own to make up for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from importlib.metadata import version
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from conf.durations import parse_duration_ms, written_duration
from conf.errors import ZoneMissing, quoted
from state.header_values import MAX_INSTANT_MS
from state.repeats.zones import instant_of, instant_with, next_change, offset_at, wall_time, zone_named

DEFAULT_ZONE = "UTC"
# Names that cron and NATS know.
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = re.compile(r"@?every\s+(.+)", re.IGNORECASE | re.DOTALL)
_FIELDS = re.compile(r"[0-9A-Za-z*,/#-]+(?:[ \t]+[0-9A-Za-z*,/#-]+){4,5}", re.ASCII)
# A range with a step that leaves something out.
_STEPPED_RANGE = re.compile(r"(?<![^,])([0-9A-Z]+)-([0-9A-Z]+)/0*[1-9][0-9]*(?![^,])", re.ASCII)
_FORMS = "an interval (every 10m, PT10M), or a cron expression of five fields, or of six that begin with seconds"
_DAY_S, _SECOND = 86_400, timedelta(seconds=1)
# There are few expressions, however many messages are published with them.
_KNOWN = 4_096


@dataclass(frozen=True)
class Rule:
    """An interval in ms, or a `cron` expression in the zone named `zone`."""

    interval_ms: int | None = None
    cron: str = ""
    zone: str = DEFAULT_ZONE

    def after(self, at_ms: int, since_ms: int | None = None) -> int | None:
        """Return the first instant after `at_ms`, which is one itself, and at or after `since_ms` (all epoch ms).

        Returns None if an expression has no further instant for fifty years, or the calendar ends. Raises ZoneMissing.
        """
        since_ms = at_ms + 1 if since_ms is None else max(since_ms, at_ms + 1)
        if self.interval_ms is not None:
            next_ms = at_ms + -(-(since_ms - at_ms) // self.interval_ms) * self.interval_ms
            return next_ms if next_ms < MAX_INSTANT_MS else None
        return _next_by_cron(self, since_ms - 1)

    @cached_property
    def shortest_ms(self) -> int:
        """The shortest time between two instants, in ms, apart from clock changes. It is this long or longer."""
        if self.interval_ms is not None:
            return self.interval_ms
        times_s = _times_of_day(self.cron)
        # From the last instant of a day to the first of the next.
        return int(np.diff(times_s, append=times_s[0] + _DAY_S).min()) * 1_000

    def count(self, start_ms: int, end_ms: int) -> int:
        """Return how many instants of an expression are in [start_ms, end_ms), epoch ms. Raises ZoneMissing.

        Days without a change of the clock are not counted instant by instant.
        """
        count, at_ms = 0, self.after(start_ms - 1)
        while at_ms is not None and at_ms < end_ms:
            until_ms = min(end_ms, _unchanged_until(self.zone, at_ms))
            count += _count_unchanged(self, at_ms, until_ms)
            at_ms = self.after(until_ms - 1)
        return count

    def __str__(self) -> str:
        if self.interval_ms is not None:
            return f"every {written_duration(self.interval_ms)}"
        return self.cron if self.zone == DEFAULT_ZONE else f"{self.cron} ({self.zone})"


def parse_rule(text: str, zone: str | None = None) -> Rule:
    """Return the rule that `text` writes, in the zone named `zone` (`DEFAULT_ZONE` by default).

    Raises ValueError for anything else, for a zone that does not exist, for a zone with an interval, and for an
    expression that never comes.
    """
    if zone is not None:
        zone_named(zone)
    text = _NAMED.get(text.lower(), text)
    every = _EVERY.fullmatch(text)
    if every is None and not text.upper().startswith("P"):
        return _parse_cron(text, zone or DEFAULT_ZONE)
    interval_ms = parse_duration_ms(text if every is None else every[1])
    if not interval_ms:
        raise ValueError(f"{quoted(text)} is an interval of 0")
    if zone is not None:
        raise ValueError("an interval has no time zone: write a cron expression")
    return Rule(interval_ms=min(interval_ms, MAX_INSTANT_MS))


@lru_cache(maxsize=_KNOWN)
def _parse_cron(text: str, zone: str) -> Rule:
    if not _FIELDS.fullmatch(text):
        raise ValueError(f"{quoted(text)} is not {_FORMS}")
    try:
        rule = Rule(cron=_as_written(text.upper().split()), zone=zone)
        CronSim(rule.cron, datetime(2000, 1, 1))
        comes = _comes(" ".join(rule.cron.split()[-3:]))
    # The package checks some of this by assertions.
    except (CronSimError, ValueError, AssertionError) as problem:
        raise ValueError(f"{quoted(text)} is not a cron expression: {problem}") from None
    if not comes:
        raise ValueError(f"{quoted(text)} never comes")
    return rule


def _as_written(fields: list[str]) -> str:
    """Return the expression of `fields` with `3` for `3-3/2`, which cronsim takes for `3/2`, unlike cron and NATS."""

    def written(kind: Field, text: str) -> str:
        return _STEPPED_RANGE.sub(lambda each: each[1] if kind.int(each[1]) == kind.int(each[2]) else each[0], text)

    return " ".join(map(written, list(Field)[-len(fields) :], fields))


@lru_cache(maxsize=_KNOWN)
def _comes(days: str) -> bool:
    """Return whether any of the `days` exists: the last three fields of a correct expression.

    The search takes milliseconds if no day exists, and each record of a publisher may need it.
    """
    return next(CronSim(f"0 0 {days}", datetime(2000, 1, 1)), None) is not None


@lru_cache(maxsize=64)
def _times_of_day(cron: str) -> npt.NDArray[np.int32]:
    """Return the times of a day at which an expression comes, in seconds since midnight, ascending."""
    fields = CronSim(cron, datetime(2000, 1, 1))
    times_s = np.zeros(1, dtype=np.int32)
    for values, seconds in ((fields.hours, 3_600), (fields.minutes, 60), (fields.seconds, 1)):
        times_s = np.add.outer(times_s, np.array(sorted(values), dtype=np.int32) * seconds).reshape(-1)
    return times_s


@lru_cache(maxsize=1 << 16)
def _unchanged_until(zone_name: str, at_ms: int) -> int:
    """Return the end of the part of the day from `at_ms` on without a change of the clock, epoch ms.

    If the clock is changed at `at_ms` itself, that is one instant alone: it may stand for times of another day.
    """
    zone = zone_named(zone_name)
    until_ms = at_ms + (_DAY_S - _time_of_day(at_ms, zone)) * 1_000
    try:
        changed_ms = next_change(at_ms - 1_000, until_ms, zone)
    except OverflowError:
        # The year 10,000.
        return at_ms + 1
    return until_ms if changed_ms is None else max(changed_ms, at_ms + 1)


@lru_cache(maxsize=1 << 16)
def _count_unchanged(rule: Rule, at_ms: int, until_ms: int) -> int:
    """Return how many instants come from `at_ms`, which is one, until `until_ms` (epoch ms) on that day."""
    times_s, time_s = _times_of_day(rule.cron), _time_of_day(at_ms, zone_named(rule.zone))
    end_s = time_s - (at_ms - until_ms) // 1_000
    return 1 + int(np.searchsorted(times_s, end_s) - np.searchsorted(times_s, time_s, side="right"))


def _time_of_day(at_ms: int, zone: ZoneInfo) -> int:
    """Return the seconds since midnight that a wall clock shows at `at_ms` (epoch ms)."""
    wall = wall_time(at_ms, zone)
    return wall.hour * 3_600 + wall.minute * 60 + wall.second


@lru_cache(maxsize=1 << 16)
def _next_by_cron(rule: Rule, after_ms: int) -> int | None:
    """Return the first instant of a cron expression after `after_ms`, epoch ms, or None. Many rules are the same."""
    try:
        zone = zone_named(rule.zone)
    except ValueError:
        # The package had the zone when the message was accepted. Another zone would be wrong, and so would an end.
        raise ZoneMissing(f"a message repeats in {rule.zone}, which tzdata {version('tzdata')} does not have") from None
    try:
        if rule.cron.split()[-4] == "*":
            return _next_shown(rule.cron, after_ms, zone)
        for wall in CronSim(rule.cron, wall_time(after_ms, zone)):
            # In an hour that is repeated, the first times have passed.
            if (at_ms := instant_of(wall, zone)) > after_ms:
                return at_ms
    except OverflowError:
        # The year 10,000.
        return None
    return None


def _next_shown(cron: str, after_ms: int, zone: ZoneInfo) -> int | None:
    """Return the first instant after `after_ms` (epoch ms) at which the wall clock shows a time that `cron` names."""
    while True:
        offset_ms = offset_at(after_ms, zone)
        found = next(CronSim(cron, wall_time(after_ms, zone)), None)
        if found is None:
            return None
        # If the clock is not changed until then.
        at_ms = instant_with(found, offset_ms)
        changed_ms = next_change(after_ms, at_ms, zone)
        if changed_ms is None:
            return at_ms
        # The clock may show such a time just when it is changed.
        found = next(CronSim(cron, wall_time(changed_ms, zone) - _SECOND), None)
        if found is not None and found == wall_time(changed_ms, zone):
            return changed_ms
        after_ms = changed_ms
