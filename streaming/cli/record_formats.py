"""Prints received records: one JSON object for each line, or a table row for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import typer

from conf.durations import format_duration
from conf.printable import printable
from sources.subscriber import Received
from streaming.status.json_values import json_line, text_or_base64

Show = Callable[[Received], None]
# Width of each column; the last one takes the rest of the line.
_COLUMNS = {"received": 12, "lateness": 8, "topic/partition/offset": 24, "id": 24, "key": 10, "value": 0}
# On a terminal narrower than this, the id column is left out in favour of the value.
_WIDE = 110
_ON_TIME_MS = 1_000


def as_json() -> Show:
    """Return a function that prints a record as one line of JSON; `subscribe --help` lists the fields."""
    return lambda record: typer.echo(json_line(json_fields(record)))


def as_rows() -> Show:
    """Print a heading, and return a function that prints a record as a row, coloured on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    hidden = {"id"} if console.is_terminal and console.width < _WIDE else set()

    def row(cells: dict[str, str], style: str = "") -> None:
        line = "  ".join(fitted(cells[name], width) for name, width in _COLUMNS.items() if name not in hidden)
        if console.is_terminal:
            console.print(Text(line, style), no_wrap=True, overflow="ellipsis", crop=True)
        else:
            typer.echo(line)

    def show(record: Received) -> None:
        late = record.lateness_ms is not None and record.lateness_ms > _ON_TIME_MS
        row(_cells(record), "yellow" if late else "")

    row({name: name for name in _COLUMNS}, "bold")
    return show


def json_fields(record: Received) -> dict[str, Any]:
    """Return the record as JSON values; bytes that are not UTF-8 become {"base64": …}."""
    headers = [[name, text_or_base64(value)] for name, value in record.headers]
    return {
        "id": record.id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": text_or_base64(record.key),
        "value": text_or_base64(record.value),
        "headers": headers if record.has_readable_headers else None,
        "deliver_at_ms": record.deliver_at_ms,
        "received_ms": record.received_ms,
        "lateness_ms": record.lateness_ms,
    }


def _cells(record: Received) -> dict[str, str]:
    received = datetime.fromtimestamp(record.received_ms / 1000)
    return {
        "received": received.strftime("%H:%M:%S.") + f"{record.received_ms % 1000:03}",
        "lateness": "-" if record.lateness_ms is None else format_duration(record.lateness_ms),
        "topic/partition/offset": f"{record.topic}/{record.partition}/{record.offset}",
        "id": "-" if record.id is None else printable(record.id),
        "key": shown(record.key),
        "value": shown(record.value),
    }


def shown(value: bytes | None) -> str:
    """Return the beginning of `value` as text that a terminal can show."""
    if value is None:
        return "(null)"
    return printable(value[:200].decode(errors="replace"))


def fitted(cell: str, width: int) -> str:
    """Return `cell` with exactly `width` characters, or as it is if `width` is 0."""
    if not width or len(cell) <= width:
        return f"{cell:{width}}" if width else cell
    # The end of an id (partition and offset) distinguishes it better than its beginning (the topic).
    return "…" + cell[1 - width :] if "/" in cell else cell[: width - 1] + "…"
