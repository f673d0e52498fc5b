"""`delayline cancel`: cancel messages that wait, and show what became of each."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from conf.errors import UsageError
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
        typer.Option("--name", metavar="NAME", help="Cancel what waits under this name of --topic. Repeatable."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="The input topic of the names.", show_default="the first of topics.input")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the answers.")] = "1m",
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header that comes back with the answer. Repeatable."),
    ] = None,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Cancel messages, and wait for the job's answer to each: cancelled, too-late or unknown.

    The id of a message is what its producer got back when it published, and what `delayline publish` prints. A message
    is answered as soon as the job's next batch has looked for it. A --name is asked for in the partition to which it
    would go as a key.

    Exit codes: 0 all are cancelled, 3 some are too late, 4 of some it is not known, 1 some have no answer in time.
    """
    from sources.canceller import Canceller

    wait_ms = duration_ms("--timeout", timeout)
    settings = settings_of(config, overrides)
    extra = [header("--header", text) for text in headers or ()]
    if topic is not None and not names:
        raise UsageError("--topic says where a --name is given: an id has its topic")
    by_name = [utf8("--name", text) for text in names or ()]
    asked = [utf8("ID", text) for text in ids] if ids else [] if by_name else _lines()
    if not asked and not by_name:
        raise UsageError("name at least one message id: topic/partition/offset")
    code = 0
    with Canceller(settings) as canceller:
        canceller.ask(asked, extra)
        canceller.ask_by_name(by_name, utf8("--topic", topic) if topic else settings.topics.input[0], extra)
        for answer in canceller.answers(wait_ms):
            typer.echo(_json(answer) if output_format == "json" else answer_row(answer))
            code = max(code, _EXIT_CODES.get(answer.result, 4))
        unanswered = canceller.unanswered
    if unanswered:
        typer.echo(
            f"no answer to {len(unanswered)} of {len(asked) + len(by_name)} within {timeout}, such as {unanswered[0]}: "
            "is the job running? Its answer will come, and cancelling again does no harm",
            err=True,
        )
        raise typer.Exit(1)
    if code:
        raise typer.Exit(code)


def _lines() -> list[str]:
    if sys.stdin.isatty():
        typer.echo("one message id for each line; end with Ctrl-D", err=True)
    return [line.strip() for line in sys.stdin if line.strip()]


def _json(answer: Answer) -> str:
    fields = {"id": answer.id, "result": answer.result, "why": answer.why}
    if answer.name is not None:
        fields["name"] = answer.name
    return json.dumps(fields, ensure_ascii=False)
