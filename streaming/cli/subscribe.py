"""`delayline subscribe`: show delivered messages as they arrive."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from streaming.cli.options import ConfigFile, Overrides, RecordFormat, duration_ms, settings_of, topic_of


def subscribe(
    start: Annotated[
        Literal["beginning", "end"],
        typer.Option("--from", help="Start with the existing messages, or with new ones only."),
    ] = "end",
    count: Annotated[int | None, typer.Option(min=1, help="End after this many messages.")] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="End after this time; exit code 1 if fewer than --count messages came."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The topic to read.", show_default="topics.output")] = None,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show the committed messages of a topic as they arrive, and how late each is.

    Prints "subscribed" to standard error when it is ready: it shows every message delivered after that. Joins no
    consumer group.

    JSON objects have: id (topic/partition/offset of the input record), topic, partition, offset, key, value,
    headers (pairs of name and value; null if the name of one is not UTF-8), deliver_at_ms, received_ms, lateness_ms.
    Bytes that are not UTF-8 become {"base64": "..."}, absent ones null. In a record that Delayline did not deliver, id,
    deliver_at_ms and lateness_ms are null.
    """
    from sources.subscriber import Subscriber
    from streaming.cli.record_formats import as_json, as_rows

    settings = settings_of(config, overrides)
    topic_name = topic_of(topic) or settings.topics.output
    timeout_ms = None if timeout is None else duration_ms("--timeout", timeout)
    seen = 0
    with Subscriber(settings, topic_name, start == "beginning") as subscriber:
        typer.echo("subscribed", err=True)
        show = as_json() if output_format == "json" else as_rows()
        for record in subscriber.records(count, timeout_ms):
            show(record)
            if not record.has_readable_headers:
                place = f"{record.topic}/{record.partition}/{record.offset}"
                typer.echo(f"{place}: the headers cannot be read, because the name of one is not UTF-8", err=True)
            seen += 1
    if count is not None and seen < count:
        typer.echo(f"{seen} of {count} messages after {timeout}", err=True)
        raise typer.Exit(1)
