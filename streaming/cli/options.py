"""The options that every command takes, and how they become settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conf.errors import UsageError

if TYPE_CHECKING:
    from conf.settings import Settings
    from sources.canceller import Answer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="DELAYLINE_CONFIG",
        help="Settings file (TOML). Without it the defaults apply.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting: kafka.bootstrap_servers=host:9092. Takes precedence over file and "
        "environment. Repeatable.",
        show_default=False,
    ),
]

# For commands that print records.
RecordFormat = Annotated[
    Literal["table", "json"], typer.Option("--format", help="A table for people, or one JSON object for each line.")
]


def settings_of(config: Path | None, overrides: Sequence[str] | None) -> Settings:
    """Load the settings that a command was called with. Raises SettingError."""
    # Imported here, not at the top, to keep `--help` fast.
    from conf.load import load_settings

    return load_settings(config, overrides or ())


def duration_ms(option: str, text: str) -> int:
    """Return the duration `text`, the value of `option`, in ms. Raises UsageError."""
    # Imported here, not at the top, to keep `--help` fast.
    from conf.durations import parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None


def instant_ms(option: str, text: str | None, now_ms: int, ago: bool = False) -> int | None:
    """Return the instant `text`, the value of `option`, in epoch ms; None without one.

    A duration is an instant so long after `now_ms`, or before it if `ago`. Raises UsageError.
    """
    from streaming.status.instants import named_instant_ms

    if text is None:
        return None
    try:
        return named_instant_ms(text, now_ms, ago)
    except ValueError as problem:
        raise UsageError(f"{option} {problem}") from None


def utf8(option: str, text: str) -> str:
    """Return `text`, the value of `option`. Raises UsageError unless it is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option} {text!r}: write UTF-8") from None
    return text


def topic_of(text: str | None) -> str | None:
    """Return the value of --topic. Raises UsageError if it is empty, as from a script's variable that is not set."""
    if text == "":
        raise UsageError("--topic '': the name of the topic is empty")
    return None if text is None else utf8("--topic", text)


def header(option: str, text: str) -> tuple[str, bytes]:
    """Split `text`, the NAME=VALUE of `option`, into a header's name and value. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{option} {text!r}: write NAME=VALUE")
    return utf8(option, name), os.fsencode(value)


def answer_row(answer: Answer) -> str:
    """Return an answer of the job to a cancel, or to a replacement, for people."""
    which = answer.id if answer.name is None else f"{answer.name}  {answer.id or '-'}"
    last = "" if answer.occurrence is None else f"  last occurrence {answer.occurrence}"
    return f"{which}  {answer.result}{last}" + (f"  ({answer.why})" if answer.why else "")
