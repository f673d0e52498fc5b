"""Bytes of records as JSON values."""

from __future__ import annotations

from base64 import b64encode


def text_or_base64(value: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a JSON value: text, or {"base64": …} if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
