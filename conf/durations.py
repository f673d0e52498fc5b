"""Parsing and formatting of durations, for settings and headers."""

from __future__ import annotations

import re
from decimal import Decimal

from conf.errors import quoted

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
# Longer names of the units, as Go, Java, Spring and people write them.
_NAMES = {
    "ms": ("millis", "millisecond", "milliseconds", "msec"),
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "w": ("week", "weeks"),
}
_MS = _UNIT_MS | {name: _UNIT_MS[unit] for unit, names in _NAMES.items() for name in names}
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?", re.ASCII)
_PART = re.compile(rf"({_NUMBER.pattern})\s*({'|'.join(sorted(_MS, key=len, reverse=True))})(?![a-z])\s*", re.ASCII)
# ISO-8601 durations. Years and months are left out, because their length depends on the calendar.
_ISO = re.compile(
    r"P(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<h>\d{1,12})H)?(?:(?P<m>\d{1,12})M)?(?:(?P<s>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
# As they are shown, from the largest: with the length in ms, and the end of the exact ones.
_SHOWN = (
    ("weeks", 604_800_000, 52 * 604_800_000),
    ("days", 86_400_000, 10_000 * 86_400_000),
    ("h", 3_600_000, 2 * 86_400_000),
    ("min", 60_000, 2 * 3_600_000),
    ("s", 1_000, 2 * 60_000),
)
FORMS = "ms, numbers with units (1500ms, 10s, 5m, 2h, 30d, 1w, 1h30m) or ISO-8601 (PT10S)"


def parse_duration_ms(text: str) -> int:
    """Parse a duration in one of `FORMS` and return milliseconds, rounded up: `"1.5s"` -> 1500.

    A number without a unit is milliseconds. Several units go from the largest to the smallest. A sign is not allowed:
    no delay and no limit is negative.

    Raises:
        ValueError: `text` is in none of the forms.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        if "." in text:
            raise ValueError(f"{quoted(text)} is not a duration: a fraction needs a unit. Write {FORMS}")
        return int(text)
    if parts := _parts(text):
        return _round_up(sum((number * unit_ms for number, unit_ms in parts), Decimal(0)))
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{quoted(text)} is not a duration. Write {FORMS}")
    return _round_up(sum((Decimal(n) * _UNIT_MS[unit] for unit, n in match.groupdict().items() if n), Decimal(0)))


def _parts(text: str) -> list[tuple[Decimal, int]]:
    """Return the numbers and units of `1h30m`, the units in ms; nothing if it is not of that form."""
    parts: list[tuple[Decimal, int]] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            return []
        parts.append((Decimal(match[1]), _MS[match[2]]))
        at = match.end()
    units = [unit_ms for _, unit_ms in parts]
    return parts if units == sorted(set(units), reverse=True) else []


def _round_up(ms: Decimal) -> int:
    # Rounding down would deliver early.
    return int(ms.to_integral_value(rounding="ROUND_CEILING"))


def format_duration(ms: float) -> str:
    """Format a duration for people, in one unit: `2_390_000_000` -> "4 weeks".

    A whole number of a unit is exact, as settings are: `90_000` -> "90 s". Others are rounded to two digits or more.
    """
    if ms < 0:
        return f"-{format_duration(-ms)}"
    for name, unit_ms, largest in _SHOWN:
        if ms >= unit_ms and ms % unit_ms == 0 and ms < largest:
            return _shown(ms / unit_ms, name)
    name, unit_ms = next(((name, unit_ms) for name, unit_ms, _ in _SHOWN if ms >= 2 * unit_ms), ("ms", 1))
    if unit_ms == 1 and ms >= 1000:
        name, unit_ms = "s", 1000
    number = ms / unit_ms
    return _shown(round(number, 1) if unit_ms > 1 and number < 10 else round(number), name)


def written_duration(ms: int) -> str:
    """Return a duration as settings and headers write it, exactly: `600_000` -> "10m"."""
    unit, unit_ms = next((unit, unit_ms) for unit, unit_ms in reversed(_UNIT_MS.items()) if ms % unit_ms == 0)
    return f"{ms // unit_ms}{unit}"


def _shown(number: float, unit: str) -> str:
    text = f"{number:.1f}".removesuffix(".0")
    return f"{text} {unit.removesuffix('s') if text == '1' and len(unit) > 2 else unit}"
