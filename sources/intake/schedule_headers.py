"""From what a person asks for (`--after 10s`) to the headers of a message."""

from __future__ import annotations

import os
from collections.abc import Sequence

from conf.errors import TwoDelays
from conf.settings import HeaderSettings
from sources.intake.schedule import parse_delay_level, parse_deliver_after, parse_deliver_at, parse_deliver_to


def schedule_headers(
    names: HeaderSettings,
    after: str | None = None,
    at: str | None = None,
    level: str | None = None,
    to: str | None = None,
    checked: bool = True,
) -> list[tuple[str, bytes]]:
    """Return the headers that ask for this schedule, their values in the bytes of the command line's arguments.

    Checked as the job would read them: raises TwoDelays, BadDeliverAfter, BadDeliverAt, BadDelayLevel or
    BadDeliverTo. What depends on the job's own settings (maximum delay, allow-list) the job alone can tell.
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


def _check(names: HeaderSettings, delays: Sequence[tuple[str, bytes]]) -> None:
    if len(delays) > 1:
        raise TwoDelays(f"one of {', '.join(name for name, _ in delays)} is allowed on one message")
    parsers = {
        names.deliver_after: parse_deliver_after,
        names.deliver_at: parse_deliver_at,
        names.delay_level: parse_delay_level,
    }
    for name, value in delays:
        parsers[name](value)
