"""Values of headers as text, and the parsing of all headers with a number or an instant. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from conf.errors import quoted

# Far above any instant that policies.max_delay allows. Sums with it still fit in 64 bits.
MAX_INSTANT_MS = 2**61
_NANOSECONDS = re.compile(r"[.,]\d{6}0*[1-9]", re.ASCII)
# The name of a zone behind the offset, as Java's ZonedDateTime writes it.
_ZONE = re.compile(r"\[[A-Za-z0-9_+\-/.:]+\]$", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# September 2001: a smaller number of ms is a delay in the wrong header, or an instant in seconds.
_LEAST_EPOCH_MS = 10**12
_SECONDS = range(10**8, 10**10)
# Instants between 2001 and 2200, in units that publishers take for milliseconds.
_FINER_UNITS = {
    name: range(_LEAST_EPOCH_MS * per_ms, 7_258_118_400_000 * per_ms)
    for name, per_ms in (("microseconds", 1_000), ("nanoseconds", 1_000_000))
}
# Far above the length of any form, so that no form is searched for in a value of megabytes.
MOST_TEXT_BYTES = 1_024


def header_text(value: bytes | None) -> str:
    """Return the text of a header's value, without blanks and quotes around it. Raises ValueError if it is not text."""
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


def parse_instant(text: str) -> int:
    """Return the instant in epoch ms, UTC. Accepts epoch ms, or ISO-8601 with an offset or Z.

    For example `1798135200000`, `2026-12-24T18:00:00Z` and `2026-12-24T19:00+01:00[Europe/Berlin]` are the same
    instant. 0 is an instant too. Raises ValueError for anything else, for an instant before 1970, and for a number that
    is a delay, or an instant in another unit, by its size.
    """
    return _epoch_ms(text) if text.isascii() and text.isdigit() else _iso_8601(text)


def _epoch_ms(text: str) -> int:
    # Cut, since Python refuses to parse a number of thousands of digits.
    number = int(text.lstrip("0")[:40] or "0")
    if number in _SECONDS:
        raise ValueError(f"{quoted(text)} is seconds by its size; write milliseconds")
    if 0 < number < _LEAST_EPOCH_MS:
        raise ValueError(f"{quoted(text)} is before September 2001 as epoch ms. Is it a delay?")
    for unit, numbers in _FINER_UNITS.items():
        if number in numbers:
            raise ValueError(f"{quoted(text)} is {unit} by its size; write milliseconds")
    return min(number, MAX_INSTANT_MS)


def _iso_8601(text: str) -> int:
    try:
        # RFC 3339 has small letters as well. The offset counts, whatever zone is behind it.
        instant = datetime.fromisoformat(_ZONE.sub("", text).upper())
    except ValueError as problem:
        # Python's sentence quotes all of the text, unless it is about a number in it.
        reason = "" if "isoformat" in str(problem) else f": {problem}"
        raise ValueError(f"{quoted(text)} is not an instant{reason}") from None
    if instant.tzinfo is None:
        raise ValueError(f"{quoted(text)} has no offset from UTC; add one, or Z")
    # Python drops the digits below 1 us.
    micros = (instant - _EPOCH) // timedelta(microseconds=1) + bool(_NANOSECONDS.search(text))
    if micros < 0:
        raise ValueError(f"{quoted(text)} is before 1970")
    # Rounded up to whole milliseconds: rounding down would be early.
    return -(-micros // 1_000)
