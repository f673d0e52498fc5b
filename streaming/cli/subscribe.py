"""`delayline subscribe`: watching what is delivered."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from conf.errors import UsageError
from streaming.cli.options import ConfigFile, Overrides, settings_of, utf8


def subscribe(
    start: Annotated[
        Literal["beginning", "end"],
        typer.Option("--from", help="Start with what is there, or what comes."),
    ] = "end",
    count: Annotated[int | None, typer.Option(min=1, help="End after that many messages.")] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="End after that long; with exit code 1 if short of --count."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="What to read.", show_default="topics.output")] = None,
    output_format: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or one JSON object a line.")
    ] = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show the messages of a topic as they come, committed ones only, and how late each is.

    Prints "subscribed" to standard error once no later message can be missed. It joins no consumer group.

    JSON objects have: id (topic/partition/offset of the input record), topic, partition, offset, key, value,
    headers (pairs of name and value), deliver_at_ms, received_ms, lateness_ms. Bytes that are not UTF-8 are
    given as {"base64": "..."}, absent ones as null; so are id, deliver_at_ms and lateness_ms of a record that
    Delayline did not deliver.
    """
    from sources.subscriber import Subscriber
    from streaming.cli.record_formats import as_json, as_rows

    settings = settings_of(config, overrides)
    watched = utf8("--topic", topic) if topic else settings.topics.output
    timeout_ms = None if timeout is None else _duration_ms(timeout)
    seen = 0
    with Subscriber(settings, watched, start == "beginning") as subscriber:
        typer.echo("subscribed", err=True)
        show = as_json() if output_format == "json" else as_rows()
        for record in subscriber.records(count, timeout_ms):
            show(record)
            seen += 1
    if count is not None and seen < count:
        typer.echo(f"{seen} of {count} messages after {timeout}", err=True)
        raise typer.Exit(1)


def _duration_ms(text: str) -> int:
    from conf.durations import parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
