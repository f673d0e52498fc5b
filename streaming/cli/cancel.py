"""`delayline cancel`: cancel messages that wait, and show what became of each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from conf.errors import UsageError, quoted
from streaming.cli.options import (
    ConfigFile,
    Overrides,
    RecordFormat,
    answer_row,
    duration_ms,
    header,
    settings_of,
    utf8,
)

if TYPE_CHECKING:
    from sources.canceller import Answer

# The exit code for answers, the worst of all: failures in general have 1, and wrong arguments 2.
_EXIT_CODES = {"cancelled": 0, "too-late": 3, "unknown": 4}


def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="Message ids, topic/partition/offset. Without any, each line of standard input is one.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="Cancel the message that waits under this name of --topic. Repeatable."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="The input topic to which the names belong.", show_default="the first of topics.input"),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the answers.")] = "1m",
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header that the answer returns. Repeatable."),
    ] = None,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Cancel messages, and wait for the job's answer to each: cancelled, too-late or unknown.

    The id of a message is its place in the input topic. Producers receive it, and `delayline publish` prints it. The
    job answers after its next batch. With --name, the request goes to the partition of a record with the name as its
    key. The settings must be the job's, because its policies say whether messages have names.

    In JSON an answer has `id`, `result`, `reason` and `why`, and `name` or `output` if there is one. The codes `result`
    and `reason` are stable (docs/publish/cancelling.md).

    Exit codes: 0 all are cancelled; 3 at least one is too late; 4 the outcome of at least one is unknown; 1 at least
    one has no answer in time, or could not be requested.
    """
    from sources.canceller import Canceller, asks_for

    wait_ms = duration_ms("--timeout", timeout)
    settings = settings_of(config, overrides)
    extra = [header("--header", text) for text in headers or ()]
    if topic is not None and not names:
        raise UsageError("--topic belongs to --name: a message id already contains its topic")
    by_name = [utf8("--name", text) for text in names or ()]
    asked = [utf8("ID", text) for text in ids] if ids else [] if by_name else _lines()
    asks = asks_for(settings, asked, by_name, utf8("--topic", topic) if topic else None)
    if not asks:
        raise UsageError("give at least one message id: topic/partition/offset")
    code = 0
    with Canceller(settings) as canceller:
        canceller.ask(asks, extra)
        for answer in canceller.answers(wait_ms):
            typer.echo(_json(answer) if output_format == "json" else answer_row(answer))
            code = max(code, _EXIT_CODES.get(answer.result, 4))
        unanswered = canceller.unanswered
    if unanswered:
        typer.echo(
            f"no answer to {len(unanswered)} of {len(asks)} within {timeout}, such as {unanswered[0]}. Is "
            "the job running? The answers will still come, and it is safe to cancel again",
            err=True,
        )
        raise typer.Exit(1)
    if code:
        raise typer.Exit(code)


def _lines() -> list[str]:
    if sys.stdin.isatty():
        typer.echo("one message id for each line; end with Ctrl-D", err=True)
    lines = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            lines.append(line.decode().strip())
        except UnicodeDecodeError:
            raise UsageError(f"line {number} of standard input, {quoted(line)}: write UTF-8") from None
    return [line for line in lines if line]


def _json(answer: Answer) -> str:
    from streaming.status.json_values import json_line

    fields = {"id": answer.id, "result": answer.result, "reason": answer.reason, "why": answer.why}
    if answer.name is not None:
        fields["name"] = answer.name
    if answer.output is not None:
        fields["output"] = answer.output
    return json_line(fields)
