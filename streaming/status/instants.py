"""Instants that a person names, on the command line and on the page."""

from __future__ import annotations

from conf.durations import parse_duration_ms
from conf.errors import quoted
from conf.setting_types import DAY, LONGEST
from state.header_values import parse_instant

# A number of fewer digits is neither an instant nor seconds since 1970.
_LEAST_DIGITS = 9


def named_instant_ms(text: str, now_ms: int, ago: bool = False) -> int:
    """Return the instant in epoch ms: epoch ms, ISO-8601 with an offset, or a duration such as `2h`.

    A duration has a unit, and is an instant so long after `now_ms`, or before it if `ago`. Raises ValueError, with a
    sentence that begins with the text.
    """
    text = text.strip()
    if text.isdigit():
        return _epoch_ms(text)
    try:
        return parse_instant(text)
    except ValueError:
        pass  # Then it is a duration. If it is not, the error below names all forms.
    try:
        duration_ms = parse_duration_ms(text)
    except ValueError:
        which = "that long ago" if ago else "that long from now"
        raise ValueError(
            f"{quoted(text)}: write epoch ms, ISO-8601 with an offset (2026-12-24T18:00:00Z), or a duration with its "
            f"unit (2h) for {which}"
        ) from None
    # Spark and Kafka count instants in 64 bits.
    if duration_ms > LONGEST:
        raise ValueError(f"{quoted(text)} is too long: the longest duration here is {LONGEST // DAY}d")
    return now_ms + duration_ms * (-1 if ago else 1)


def _epoch_ms(text: str) -> int:
    """Read a number without a unit: never a duration, since an instant in seconds would be one of weeks, in ms."""
    if text.isascii() and len(text.lstrip("0")) < _LEAST_DIGITS:
        raise ValueError(
            f"{quoted(text)} is before September 2001 as epoch ms. For a duration, write a unit, such as {text[:9]}ms"
        )
    return parse_instant(text)
