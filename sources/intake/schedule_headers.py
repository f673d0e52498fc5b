"""Turns a schedule from the command line (`--after 10s`) into the headers of a message."""

from __future__ import annotations

import os
from collections.abc import Sequence

from conf.rejected import TwoDelays
from conf.sections import HeaderSettings
from sources.intake.repeats import first_instant, parse_schedule
from sources.intake.schedule import (
    level_delay_ms,
    parse_delay_level,
    parse_deliver_after,
    parse_deliver_at,
    parse_deliver_to,
)
from state.repeats.schedule import REPEAT_HEADERS, Occurrence


def schedule_headers(
    names: HeaderSettings,
    after: str | None = None,
    at: str | None = None,
    level: str | None = None,
    to: str | None = None,
    checked: bool = True,
) -> list[tuple[str, bytes]]:
    """Return the headers for a schedule. The values are the bytes of the command line's arguments.

    Only the job can check what depends on its settings (maximum delay, allow-list).

    Args:
        names: the header names
        after: a delay, such as `10s`
        at: an instant, such as `2026-12-24T18:00:00Z`
        level: a delay level, such as `3`
        to: the output topic
        checked: whether to check the values as the job does

    Raises:
        TwoDelays, BadDeliverAfter, BadDeliverAt, BadDelayLevel, BadDeliverTo: if `checked`
    """
    delays = {names.deliver_after: after, names.deliver_at: at, names.delay_level: level}
    headers = [(name, os.fsencode(text)) for name, text in delays.items() if text is not None]
    if checked:
        _check(names, headers)
    if to is not None:
        if checked:
            parse_deliver_to(os.fsencode(to))
        headers.append((names.deliver_to, os.fsencode(to)))
    return headers


def repeat_headers(
    rule: str | None = None,
    zone: str | None = None,
    until: str | None = None,
    count: str | None = None,
    missed: str | None = None,
    checked: bool = True,
) -> list[tuple[str, bytes]]:
    """Return the headers of a message that repeats, by the arguments of the command line.

    Only the job can check what depends on its policies. Raises BadRepeat, if `checked`.
    """
    given = zip(REPEAT_HEADERS, (rule, zone, until, count, missed), strict=True)
    headers = [(name, os.fsencode(text)) for name, text in given if text is not None]
    if headers and checked:
        parse_schedule(dict(headers))
    return headers


def start_ms(
    after: str | None, at: str | None, level: str | None, levels_ms: tuple[int, ...], now_ms: int
) -> int | None:
    """Return when a message is due that is published now with one of these delays (epoch ms); None without one.

    Raises BadDeliverAfter, BadDeliverAt, BadDelayLevel.
    """
    if at is not None:
        return parse_deliver_at(os.fsencode(at))
    if after is not None:
        return now_ms + parse_deliver_after(os.fsencode(after))
    return None if level is None else now_ms + level_delay_ms(parse_delay_level(os.fsencode(level)), levels_ms)


def next_instants(headers: Sequence[tuple[str, bytes]], due_ms: int | None, now_ms: int, most: int = 3) -> list[int]:
    """Return when the next occurrences come (epoch ms) of a message that is published now with the `repeat_headers`.

    `due_ms` is when it is due by its delay, if it has one. Returns nothing if that is over. Raises BadRepeat, also if
    no occurrence comes.
    """
    schedule = parse_schedule(dict(headers))
    first_ms = first_instant(schedule, due_ms, now_ms)
    return [] if first_ms < now_ms else [each.at_ms for each in schedule.upcoming(Occurrence(1, first_ms), most)]


def _check(names: HeaderSettings, delays: Sequence[tuple[str, bytes]]) -> None:
    if len(delays) > 1:
        raise TwoDelays(f"a message may have only one of {', '.join(name for name, _ in delays)}")
    parsers = {
        names.deliver_after: parse_deliver_after,
        names.deliver_at: parse_deliver_at,
        names.delay_level: parse_delay_level,
    }
    for name, value in delays:
        parsers[name](value)
