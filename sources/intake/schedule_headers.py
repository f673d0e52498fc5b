"""Turns a schedule from the command line (`--after 10s`) into the headers of a message."""

from __future__ import annotations

import os
from collections.abc import Sequence

from conf.rejected import BadRepeat, TwoDelays
from conf.sections import HeaderSettings
from sources.intake.repeats import parse_schedule
from sources.intake.schedule import parse_delay_level, parse_deliver_after, parse_deliver_at, parse_deliver_to
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


def next_instants(headers: Sequence[tuple[str, bytes]], now_ms: int, most: int = 3) -> list[int]:
    """Return when the next occurrences come (epoch ms) of a message without a delay, with the `repeat_headers`.

    Raises BadRepeat, also if none comes.
    """
    schedule = parse_schedule(dict(headers))
    first_ms = schedule.rule.after(now_ms)
    if first_ms is None or (schedule.until_ms is not None and first_ms > schedule.until_ms):
        raise BadRepeat(f"{schedule.rule} has no occurrence before it ends")
    return [each.at_ms for each in schedule.upcoming(Occurrence(1, first_ms), most)]


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
