"""Values of headers as text, and what all headers share that name a number or an instant. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from conf.errors import quoted

# Far above any instant that limits.max_delay allows, and safe to add to in 64 bits.
MAX_INSTANT_MS = 2**61
_NANOSECONDS = re.compile(r"[.,]\d{6}0*[1-9]", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Epoch ms of these lengths are before April 1970, and after the year 33,000.
_DIGITS_OF_SECONDS = (9, 10)
_LEAST_DIGITS_OF_MICROSECONDS = 15
# Far above what any form needs, so that none has to be searched for in a value of megabytes.
MOST_TEXT_BYTES = 1_024


def header_text(value: bytes | None) -> str:
    """Return the text of a header's value, without blanks and quotes around it. Raises ValueError if it is no text."""
    if value is None:
        raise ValueError("it has no value")
    if len(value) > MOST_TEXT_BYTES:
        raise ValueError(f"{quoted(value)} has {len(value)} bytes, more than {MOST_TEXT_BYTES}")
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


def parse_instant(text: str) -> int:
    """Return the instant in epoch ms, UTC. Accepts epoch ms, or ISO-8601 with an offset or Z.

    For example `1798135200000`, `2026-12-24T18:00:00Z` and `2026-12-24T19:00:00+01:00` are the same instant. Raises
    ValueError for anything else, for an instant before 1970, and for a number that is one of seconds, microseconds or
    nanoseconds by its length; OverflowError for a year that is none.
    """
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
