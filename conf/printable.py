"""Text from elsewhere, for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` with another character for each that a terminal would obey and not show."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
