"""`delayline peek`: look at waiting messages, without touching them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from streaming.cli.options import ConfigFile, Overrides, RecordFormat, instant_ms, settings_of, topic_of, utf8

# Width of each column; the last one takes the rest of the line.
_COLUMNS = {"due": 24, "place": 8, "id": 28, "output": 20, "key": 12, "value": 0}


def peek(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Only these messages: topic/partition/offset.")
    ] = None,
    due_from: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT",
            help="Only messages due at or after this instant: epoch ms, ISO-8601, or 2h for 2h from now.",
        ),
    ] = None,
    due_until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only messages due before this instant, in the same forms.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only messages with this key.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only messages for this output topic.")] = None,
    newest: Annotated[
        bool, typer.Option("--newest", help="Show the messages published last instead of those due next.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Show at most this many messages, without ids.")] = 20,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show waiting messages: the next ones due, a range of due time, or by id. Changes nothing.

    The running job answers at monitor.job within seconds. If it does not, or if the look is too large for it, the
    command says so and starts a Spark of its own, which takes half a minute. With --key, --topic or --newest, all
    messages of the range are read. If many messages wait, give a short range. See docs/operate/status.md.

    JSON objects have: id (topic/partition/offset of the input record), place (ready, mutable or sealed), deliver_at
    (ISO-8601), deliver_at_ms, timestamp_ms, output_topic, error_code (of a dead letter, or null), key, value, headers
    (pairs of name and value), and repeat. This has the rule of a repeating message, the number of its next occurrence,
    and next: three instants. Bytes that are not UTF-8 become {"base64": "..."}, absent ones null.
    """
    from conf.errors import UsageError
    from sources.canceller import place_of
    from streaming.status.json_values import json_line
    from streaming.status.look import Look, message_fields, not_waiting, repeat_fields
    from streaming.status.look_reader import LookReader

    settings = settings_of(config, overrides)
    now_ms = time.time_ns() // 1_000_000
    from_ms, until_ms = instant_ms("--due-from", due_from, now_ms), instant_ms("--due-until", due_until, now_ms)
    if from_ms is not None and until_ms is not None and until_ms <= from_ms:
        raise UsageError(f"--due-until {due_until}: the range from --due-from {due_from} is empty")
    wanted = Look(
        from_ms,
        until_ms,
        tuple(place_of(utf8("ID", text), settings) for text in ids) if ids else None,
        None if key is None else utf8("--key", key).encode(),
        topic_of(topic),
        newest,
        # A limit would hide ids that are asked for.
        max(limit, len(ids or ())),
    )

    def on_own_spark(why: str) -> None:
        typer.echo(f"starting Spark to read the storage: {why}", err=True)

    with LookReader(settings) as reader:
        rows = reader.look(wanted, on_own_spark).to_pylist()
    if output_format == "table":
        typer.echo(_line({name: name for name in _COLUMNS}))
    for row in rows:
        if output_format == "json":
            typer.echo(json_line(message_fields(row)))
            continue
        typer.echo(_line(_cells(row)))
        if repeat := repeat_fields(row):
            following = ", ".join(map(str, repeat["next"]))
            typer.echo(f"    repeats {repeat['rule']}, occurrence {repeat['number']}, next {following}")
    if missing := not_waiting(wanted, rows):
        typer.echo(f"{len(missing)} of {len(set(wanted.ids or ()))} do not wait: {', '.join(missing)}", err=True)
        raise typer.Exit(1)


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    from conf.instants import instant
    from streaming.cli.record_formats import shown

    return {
        "due": instant(row["deliver_at_ms"]),
        "place": row["place"],
        "id": row["id"],
        "output": row["output_topic"],
        "key": shown(row["key"]),
        "value": shown(row["value"]),
    }


def _line(cells: dict[str, str]) -> str:
    from streaming.cli.record_formats import fitted

    return "  ".join(fitted(cells[name], width) for name, width in _COLUMNS.items()).rstrip()
