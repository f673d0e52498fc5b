"""Instants as text, for logs and errors."""

from __future__ import annotations

from datetime import UTC, datetime


def instant(at_ms: int) -> str:
    """Return epoch ms in ISO-8601, such as 2026-12-24T18:00:00.000Z; outside years 1 to 9999 as a number of ms."""
    try:
        text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    # The platform may know fewer years: an error of it.
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return text.replace("+00:00", "Z")


def instant_and_ms(at_ms: int) -> str:
    """Return epoch ms in ISO-8601 and as the number that settings, offsets and metadata have."""
    return f"{instant(at_ms)} ({at_ms})"
