"""Parsing one delay header. Pure: text in, milliseconds out, or the error of the dead letter."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from conf.durations import FORMS, parse_duration_ms
from conf.errors import BadDelayLevel, BadDeliverAfter, BadDeliverAt, BadDeliverTo, quoted

# Far above any instant that limits.max_delay allows, and safe to add to in 64 bits.
MAX_INSTANT_MS = 2**61
_NANOSECONDS = re.compile(r"[.,]\d{6}0*[1-9]", re.ASCII)
# The topic names that Kafka allows.
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Epoch ms of these lengths are before April 1970, and after the year 33,000.
_DIGITS_OF_SECONDS = (9, 10)
_LEAST_DIGITS_OF_MICROSECONDS = 15
# Far above what any form needs, so that none has to be searched for in a value of megabytes.
_MOST_BYTES = 1_024


def header_text(value: bytes | None) -> str:
    """Return the text of a header's value, without blanks and quotes around it. Raises ValueError if it is no text."""
    if value is None:
        raise ValueError("it has no value")
    if len(value) > _MOST_BYTES:
        raise ValueError(f"{quoted(value)} has {len(value)} bytes, more than {_MOST_BYTES}")
    if len(value) in (4, 8) and not value.strip().decode("latin-1").isprintable():
        number = int.from_bytes(value, signed=True)
        raise ValueError(f"{value!r} is binary, perhaps the number {number}: write it as text")
    try:
        text = value.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"{quoted(value)} is not UTF-8 text") from None
    # A JSON string: Spring's header mapper writes these.
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] == '"' else text


def whole_number(text: str, maximum: int = MAX_INSTANT_MS) -> int:
    """Return a number of digits, or `maximum` if it is larger. Raises ValueError for anything else."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{quoted(text)} is not a whole number of 0 or more")
    # Cut, since Python refuses to parse a number of thousands of digits.
    return min(int(text.lstrip("0")[:40] or "0"), maximum)


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as problem:
        # Python's sentence quotes all of the text, unless it is about a number in it.
        reason = "" if repr(text) in str(problem) else f": {problem}"
        raise ValueError(f"{quoted(text)} is no instant{reason}") from None


def parse_deliver_at(value: bytes | None) -> int:
    """Return the instant in epoch ms, UTC. Accepts epoch ms, or ISO-8601 with an offset or Z.

    For example `1798135200000`, `2026-12-24T18:00:00Z` and `2026-12-24T19:00:00+01:00` are the same instant. Raises
    BadDeliverAt for anything else, for an instant before 1970, and for a number that is one of seconds, microseconds or
    nanoseconds by its length.
    """
    try:
        text = header_text(value)
        if text.isascii() and text.isdigit():
            digits = len(text.lstrip("0"))
            if digits in _DIGITS_OF_SECONDS:
                raise ValueError(f"{quoted(text)} is seconds by its length; write milliseconds")
            if digits >= _LEAST_DIGITS_OF_MICROSECONDS:
                raise ValueError(f"{quoted(text)} is microseconds or less by its length; write milliseconds")
            return whole_number(text)
        instant = _instant(text)
        if instant.tzinfo is None:
            raise ValueError(f"{quoted(text)} has no offset from UTC; add one, or Z")
        # Round up to whole milliseconds: rounding down would be early. Python drops the digits below 1 us.
        if _NANOSECONDS.search(text):
            instant += timedelta(microseconds=1)
        ms = -((_EPOCH - instant) // timedelta(milliseconds=1))
        if ms < 0:
            raise ValueError(f"{quoted(text)} is before 1970")
        return ms
    except (ValueError, OverflowError) as problem:
        raise BadDeliverAt(
            f"deliver-at is epoch ms or ISO-8601 with an offset (2026-12-24T18:00:00Z): {problem}"
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
