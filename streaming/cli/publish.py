"""`delayline publish`: one message from an argument, or one a line from standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, header, settings_of, utf8


def publish(
    value: Annotated[
        str | None, typer.Argument(help="The message. Without it, each line of standard input is one.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Deliver that much later: 1500ms, 10s, 5m, PT10S."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="INSTANT", help="Deliver at epoch ms, or ISO-8601 such as 2026-12-24T18:00:00Z."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="Deliver after the delay of this level: 1, 2, ...; 0 is at once."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Deliver to this topic; the job must allow it.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The message's key.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A further header. Repeatable.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Where to publish.", show_default="the first of topics.input")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Where to publish.", show_default="by the key")] = None,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Send a schedule that cannot be read, too."),
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Publish messages, now or to be delivered later. Prints the id of each: topic/partition/offset.

    Without --after, --at or --level a message is delivered at once. The schedule is checked before anything
    is sent, unless --unchecked.
    """
    from sources.intake.schedule_headers import schedule_headers
    from sources.publisher import Publisher

    settings = settings_of(config, overrides)
    schedule = schedule_headers(settings.headers, after, at, level, to, checked=not unchecked)
    further = [header("--header", text) for text in headers or ()]
    where = utf8("--topic", topic) if topic else settings.topics.input[0]
    values: Iterable[bytes] = _lines() if value is None else [os.fsencode(value)]
    with Publisher(settings, where, partition) as publisher:
        for message_id in publisher.publish(values, None if key is None else os.fsencode(key), schedule + further):
            typer.echo(message_id)


def _lines() -> Iterator[bytes]:
    if sys.stdin.isatty():
        typer.echo("one message a line; end with Ctrl-D", err=True)
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")
