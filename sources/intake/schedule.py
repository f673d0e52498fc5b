"""Parsing one delay header. Pure: text in, milliseconds out, or the error of the dead letter."""

from __future__ import annotations

import re

from conf.durations import FORMS, parse_duration_ms
from conf.errors import quoted
from conf.rejected import BadDelayLevel, BadDeliverAfter, BadDeliverAt, BadDeliverTo
from state.header_values import MAX_INSTANT_MS, header_text, parse_instant, whole_number

# The topic names that Kafka allows.
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", re.ASCII)


def parse_deliver_at(value: bytes | None) -> int:
    """Return the instant in epoch ms, UTC: 0, epoch ms, or ISO-8601 with an offset or Z (`parse_instant`).

    Raises BadDeliverAt for anything else.
    """
    try:
        return parse_instant(header_text(value))
    except ValueError as problem:
        raise BadDeliverAt(
            "deliver-at is epoch ms or ISO-8601 with an offset (2026-12-24T18:00:00Z), and a delay goes into "
            f"deliver-after: {problem}"
        ) from None


def parse_deliver_after(value: bytes | None) -> int:
    """Return the delay in ms. Raises BadDeliverAfter if the value has none of the forms in `conf.durations`."""
    try:
        return min(parse_duration_ms(header_text(value)), MAX_INSTANT_MS)
    except ValueError as problem:
        raise BadDeliverAfter(f"deliver-after is {FORMS}: {problem}") from None


def parse_delay_level(value: bytes | None) -> int:
    """Return the level, 0 or more. Raises BadDelayLevel for anything else."""
    try:
        return whole_number(header_text(value), 2**31)
    except ValueError as problem:
        raise BadDelayLevel(f"delay-level is 0 (at once), 1, 2, ...: {problem}") from None


def level_delay_ms(level: int, levels_ms: tuple[int, ...]) -> int:
    """Return the delay of a level, as in RocketMQ: level 0 has no delay, a level above the last means the last."""
    return 0 if level == 0 else levels_ms[min(level, len(levels_ms)) - 1]


def parse_deliver_to(value: bytes | None, header: str = "deliver-to") -> str:
    """Return the topic that the value of `header` names. Raises BadDeliverTo if it is not a valid topic name."""
    try:
        text = header_text(value)
        if not _TOPIC.fullmatch(text):
            raise ValueError(f"{quoted(text)} is not 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'")
        return text
    except ValueError as problem:
        raise BadDeliverTo(f"{header} names a topic: {problem}") from None
