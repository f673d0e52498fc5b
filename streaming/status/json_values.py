"""Records as JSON: bytes as values, and lines that a terminal can show."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping

# JSON need not escape these. A terminal obeys the first ones, and for some readers the others end a line.
_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029]")


def text_or_base64(value: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a JSON value: text, or {"base64": …} if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def json_line(fields: Mapping[str, object]) -> str:
    """Return `fields` as one line of JSON, in which text is readable and control characters are escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(fields, ensure_ascii=False))
