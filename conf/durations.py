"""Parsing and formatting of durations, for settings and headers."""

from __future__ import annotations

import re
from decimal import Decimal

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER_WITH_UNIT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ms|s|m|h|d|w)?", re.ASCII)
# ISO-8601 durations without years and months, whose length depends on the calendar.
_ISO = re.compile(
    r"P(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<h>\d{1,12})H)?(?:(?P<m>\d{1,12})M)?(?:(?P<s>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
FORMS = "ms, a number with a unit (1500ms, 10s, 5m, 2h, 30d, 1w) or ISO-8601 (PT10S)"


def parse_duration_ms(text: str) -> int:
    """Parse a duration in one of `FORMS` and return milliseconds, rounded up: `"1.5s"` -> 1500.

    A number without a unit is milliseconds. A sign is not allowed: no delay and no limit is negative.

    Raises:
        ValueError: `text` is in none of the forms.
    """
    text = text.strip()
    if match := _NUMBER_WITH_UNIT.fullmatch(text):
        number, unit = match.groups()
        if unit is None and "." in number:
            raise ValueError(f"{text!r} is not a duration: a fraction needs a unit; write {FORMS}")
        return _round_up(Decimal(number) * _UNIT_MS[unit or "ms"])
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text[:80]!r} is not a duration; write {FORMS}")
    return _round_up(sum((Decimal(n) * _UNIT_MS[unit] for unit, n in match.groupdict().items() if n), Decimal(0)))


def _round_up(ms: Decimal) -> int:
    # Rounding down would deliver early.
    return int(ms.to_integral_value(rounding="ROUND_CEILING"))


def format_duration(ms: float) -> str:
    """Format a duration in the largest unit that fits: 1500 -> '1.5s'."""
    for unit in ("w", "d", "h", "m", "s"):
        if abs(ms) >= _UNIT_MS[unit]:
            return f"{ms / _UNIT_MS[unit]:.4g}{unit}"
    return f"{ms:.4g}ms"
