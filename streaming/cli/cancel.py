"""`delayline cancel`: cancel messages that wait, and show what became of each."""

from __future__ import annotations

from typing import Annotated

import typer

from conf.errors import UsageError
from streaming.cli.asking import Headers, Ids, Timeout, ask, ids_given
from streaming.cli.options import ConfigFile, Overrides, RecordFormat, settings_of, topic_of, utf8

_EXIT_CODES = {"cancelled": 0, "too-late": 3}


def cancel(
    ids: Ids = None,
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
    timeout: Timeout = "1m",
    headers: Headers = None,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Cancel messages, and wait for the job's answer to each: cancelled, too-late or unknown.

    The id of a message is its place in the input topic. Producers receive it, and `delayline publish` prints it. The
    job answers after its next batch. With --name, the request goes to the partition of a record with the name as its
    key. The settings must be the job's, because its policies say whether messages have names.

    In JSON an answer has `id`, `result`, `reason` and `why`, and `name`, `output` or `occurrence` if there is one. The
    codes `result` and `reason` are stable (docs/publish/cancelling.md).

    Exit codes: 0 all are cancelled; 3 at least one is too late; 4 the outcome of at least one is unknown; 1 at least
    one has no answer in time, or could not be requested.
    """
    from sources.canceller import RequestRecord, requests_for

    settings = settings_of(config, overrides)
    if topic is not None and not names:
        raise UsageError("--topic belongs to --name: a message id already contains its topic")
    by_name = [utf8("--name", text) for text in names or ()]

    def requests() -> list[RequestRecord]:
        asked = [] if by_name and not ids else ids_given(ids)
        return requests_for(settings, asked, by_name, topic_of(topic))

    ask(settings, requests, headers, timeout, output_format, _EXIT_CODES)
