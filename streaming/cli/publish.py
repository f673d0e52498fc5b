"""`delayline publish`: publish one message from an argument, or one for each line of standard input."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from conf.errors import UsageError
from streaming.cli.options import ConfigFile, Overrides, answer_row, duration_ms, header, settings_of, topic_of, utf8

if TYPE_CHECKING:
    from conf.settings import Settings
    from sources.canceller import Answer

# Groups of options in the help.
_REPEATING, _REPLACING = "Repeating", "Replacing a message"


class _Message(NamedTuple):
    """The parts of each message that the options choose, apart from its value. None: by default."""

    key: bytes | None
    headers: list[tuple[str, bytes]]
    topic: str | None
    partition: int | None


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
    repeat: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            rich_help_panel=_REPEATING,
            help="Deliver again and again: 'every 10m', PT10M, or a cron expression such as '0 9 * * MON-FRI'. The "
            "policy repeats must allow it.",
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(
            "--repeat-zone", metavar="ZONE", rich_help_panel=_REPEATING, help="The time zone of a cron expression."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--repeat-until",
            metavar="INSTANT",
            rich_help_panel=_REPEATING,
            help="No occurrence comes after this instant.",
        ),
    ] = None,
    most: Annotated[
        str | None,
        typer.Option(
            "--repeat-count", metavar="N", rich_help_panel=_REPEATING, help="How many occurrences come, at the most."
        ),
    ] = None,
    missed: Annotated[
        Literal["one", "all", "none"] | None,
        typer.Option(
            "--repeat-missed",
            rich_help_panel=_REPEATING,
            help="Deliver the first, all or none of the occurrences that an outage of the job has made late.",
            show_default="one",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Deliver to this topic; the job must allow it.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The message's key.")] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The message's name. The message replaces the one that waits under it. The policy names must allow "
            "names."
        ),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="An additional header. Repeatable.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="The input topic.", show_default="the first of topics.input")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The topic's partition.", show_default="by the key")
    ] = None,
    replaces: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            rich_help_panel=_REPLACING,
            help="Cancel this waiting message, and accept the new one in its place: both or neither.",
        ),
    ] = None,
    condition: Annotated[
        Literal["waiting", "always"] | None,
        typer.Option(
            "--if",
            rich_help_panel=_REPLACING,
            help="With --replaces: accept the new message only if the old one still waited, or always.",
            show_default="waiting",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION", rich_help_panel=_REPLACING, help="With --replaces: how long to wait for the answer."
        ),
    ] = "1m",
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Send the message even if its schedule is invalid."),
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Publish messages, with or without a delay. Prints the id of each message: topic/partition/offset.

    Without --after, --at, --level and --repeat the message is delivered immediately. The command checks the schedule
    before it sends anything, unless --unchecked is given.

    With --repeat, the first occurrence comes when --after, --at or --level says. If the rule is a cron expression, it
    comes at the expression's first instant from then on. The command shows the next three instants on standard error.

    With --replaces, the command waits for the job's answer, and shows it on standard error. Exit codes then: 0 the new
    message is accepted; 3 it is refused, because the old one was cancelled before; 4 it is refused, because the old one
    is staged or unknown; 1 there was no answer in time.
    """
    from sources.intake.schedule_headers import next_instants, repeat_headers, schedule_headers, start_ms
    from sources.publisher import Publisher
    from state.names import MOST_NAME_BYTES, NAME_HEADER

    wait_ms = duration_ms("--timeout", timeout)
    settings = settings_of(config, overrides)
    if condition and not replaces:
        raise UsageError("--if needs --replaces: it says when to accept a message that replaces another")
    if replaces and value is None:
        raise UsageError("--replaces needs exactly one message: give it as an argument")
    if name is not None and replaces:
        raise UsageError("--name and --replaces exclude each other: a message with a name replaces the one that has it")
    schedule = schedule_headers(settings.headers, after, at, level, to, checked=not unchecked)
    rule = repeat_headers(repeat, zone, until, most, missed, checked=not unchecked)
    instants: list[int] = []
    if rule and not unchecked:
        now_ms = time.time_ns() // 1_000_000
        instants = next_instants(rule, start_ms(after, at, level, settings.levels.delays, now_ms), now_ms)
    own = [*schedule, *rule, *(header("--header", text) for text in headers or ())]
    if name is not None and not unchecked and not 1 <= len(os.fsencode(name)) <= MOST_NAME_BYTES:
        raise UsageError(f"--name: a name must have 1 to {MOST_NAME_BYTES} bytes")
    if name is not None:
        own.append((NAME_HEADER, os.fsencode(name)))
    record_key = None if key is None else os.fsencode(key)
    message = _Message(record_key, own, topic_of(topic), partition)
    if replaces and value is not None:
        answer = _replace(settings, utf8("--replaces", replaces), condition, os.fsencode(value), message, wait_ms)
        _show(answer, timeout)
    else:
        values: Iterable[bytes] = _lines() if value is None else [os.fsencode(value)]
        # Without a key, all records of the name go where `delayline cancel --name` asks.
        by_name = os.fsencode(name) if name is not None and key is None else None
        with Publisher(settings, message.topic or settings.topics.input[0], partition, by_name) as publisher:
            for message_id in publisher.publish(values, message.key, message.headers):
                typer.echo(message_id)
    _show_next(instants)


def _replace(
    settings: Settings, old: str, condition: str | None, value: bytes, message: _Message, wait_ms: int
) -> Answer | None:
    """Publish a message in place of the one with the id `old`. Return the job's answer, if it comes in time."""
    from sources.canceller import Canceller, place_of
    from sources.publisher import Publisher
    from state.cancel import WAITING, replacing

    # By default behind the old message: so the job has read that before it reads the new one.
    old_topic, old_partition, _ = place_of(old, settings)
    is_behind = message.partition is None and message.topic in (None, old_topic)
    partition = old_partition if is_behind else message.partition
    with Canceller(settings) as canceller, Publisher(settings, message.topic or old_topic, partition) as publisher:
        headers = [*message.headers, *replacing(old, condition or WAITING)]
        for message_id in publisher.publish([value], message.key, headers):
            typer.echo(message_id)
            canceller.expect(message_id, old)
        return next(canceller.answers(wait_ms), None)


def _show_next(instants_ms: Sequence[int]) -> None:
    from conf.instants import instant

    if instants_ms:
        typer.echo(f"next {', '.join(map(instant, instants_ms))}", err=True)


def _show(answer: Answer | None, timeout: str) -> None:
    """Show the answer to a replacement. Raises the exit code if it is not accepted."""
    if answer is None:
        typer.echo(f"no answer within {timeout}. Is the job running? Is the message a dead letter?", err=True)
        raise typer.Exit(1)
    what = "accepted" if answer.accepted else "not accepted"
    typer.echo(f"{what}; {answer_row(answer)}", err=True)
    if not answer.accepted:
        raise typer.Exit(4 if answer.result == "unknown" else 3)


def _lines() -> Iterator[bytes]:
    if sys.stdin.isatty():
        typer.echo("one message for each line; end with Ctrl-D", err=True)
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")
