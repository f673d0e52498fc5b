"""The common part of the commands that publish requests: they show the answer to each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from conf.errors import UsageError, quoted
from streaming.cli.options import RecordFormat, answer_row, duration_ms, header, utf8

if TYPE_CHECKING:
    from conf.settings import Settings
    from sources.canceller import Answer, RequestRecord

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID...",
        help="Message ids, topic/partition/offset. Without any, each line of standard input is one.",
    ),
]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the answers.")]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="A header that the answer returns. Repeatable."),
]
# The exit code if some answers are `unknown`: the worst one. Failures in general have 1, and wrong arguments 2.
_UNKNOWN = 4


def ask(
    settings: Settings,
    make_requests: Callable[[], Sequence[RequestRecord]],
    headers: Sequence[str] | None,
    timeout: str,
    output_format: RecordFormat,
    exit_codes: Mapping[str, int],
) -> None:
    """Publish the requests of `make_requests`, with `headers`, and show the answers that come within `timeout`.

    Ends the command with the highest of `exit_codes`, which are by result, or with 1 if answers are missing.
    """
    from sources.canceller import Canceller
    from sources.intake.header_case import REQUEST_HEADERS
    from state.cancel import OPERATOR_HEADER

    wait_ms = duration_ms("--timeout", timeout)
    extra = [header("--header", text) for text in headers or ()]
    for name, _ in extra:
        if name.lower() in REQUEST_HEADERS and name != OPERATOR_HEADER:
            raise UsageError(f"--header {name}: this header has a meaning of its own, and the answer cannot return it")
    # It may read standard input: not before the rest is known to be right.
    requests = make_requests()
    if not requests:
        raise UsageError("give at least one message id: topic/partition/offset")
    code = 0
    with Canceller(settings) as canceller:
        canceller.ask(requests, extra)
        for answer in canceller.answers(wait_ms):
            typer.echo(_json(answer) if output_format == "json" else answer_row(answer))
            code = max(code, exit_codes.get(answer.result, _UNKNOWN))
        unanswered = canceller.unanswered
    if unanswered:
        typer.echo(
            f"no answer to {len(unanswered)} of {len(requests)} within {timeout}, such as {unanswered[0]}. Is "
            "the job running? The answers will still come, and it is safe to ask again",
            err=True,
        )
        raise typer.Exit(1)
    if code:
        raise typer.Exit(code)


def ids_given(ids: Sequence[str] | None) -> list[str]:
    """Return the ids that were given as arguments, or else on standard input."""
    return [utf8("ID", text) for text in ids] if ids else _lines()


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

    fields: dict[str, object] = {"id": answer.id, "result": answer.result, "reason": answer.reason, "why": answer.why}
    if answer.name is not None:
        fields["name"] = answer.name
    if answer.output is not None:
        fields["output"] = answer.output
    if answer.occurrence is not None:
        fields["occurrence"] = answer.occurrence
    return json_line(fields)
