"""`delayline publish`: publish one message from an argument, or one for each line of standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, header, settings_of, utf8


def publish(
    value: Annotated[
        str | None, typer.Argument(help="The message. Without it, each line of standard input is a message.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Deliver after this delay: 1500ms, 10s, 5m, PT10S."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT", help="Deliver at this instant: epoch ms, or ISO-8601 such as 2026-12-24T18:00:00Z."
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="Deliver after the delay of this level: 1, 2, ...; 0 means no delay."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Deliver to this topic; the job must allow it.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The message's key.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="An additional header. Repeatable.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="The input topic.", show_default="the first of topics.input")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The topic's partition.", show_default="by the key")
    ] = None,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Send the message even if its schedule is invalid."),
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Publish messages, with or without a delay. Prints the id of each message: topic/partition/offset.

    Without --after, --at and --level the message is delivered immediately. The command checks the schedule before it
    sends anything, unless --unchecked is given.
    """
    from sources.intake.schedule_headers import schedule_headers
    from sources.publisher import Publisher

    settings = settings_of(config, overrides)
    schedule = schedule_headers(settings.headers, after, at, level, to, checked=not unchecked)
    user_headers = [header("--header", text) for text in headers or ()]
    input_topic = utf8("--topic", topic) if topic else settings.topics.input[0]
    values: Iterable[bytes] = _lines() if value is None else [os.fsencode(value)]
    with Publisher(settings, input_topic, partition) as publisher:
        for message_id in publisher.publish(values, None if key is None else os.fsencode(key), schedule + user_headers):
            typer.echo(message_id)


def _lines() -> Iterator[bytes]:
    if sys.stdin.isatty():
        typer.echo("one message for each line; end with Ctrl-D", err=True)
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")
