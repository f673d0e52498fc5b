"""`delayline resend`: dead letters, mended, to their input topics again."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conf.errors import BadDeliverAt, UsageError
from streaming.cli.options import ConfigFile, Overrides, header, settings_of, utf8

if TYPE_CHECKING:
    from sources.dead_letters.letter import HeaderChanges
    from streaming.operations.resend import Outcome

_OWN = "delayline-"


def resend(
    code: Annotated[
        list[str] | None, typer.Option(help="Only those with this error code. Repeatable: any of them.")
    ] = None,
    identity: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Only the one with this delayline-id. Repeatable.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition of the dead-letter topic.")] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Only these offsets there, both included: 10-20, 10-, -20 or 10."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT", help="Only those published then or later: epoch ms, ISO-8601, or 2h for 2h ago."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="INSTANT", help="Only those published before that.")] = None,
    set_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set this header, in the place of all of its name. Repeatable."),
    ] = None,
    drop_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave all headers of this name out. Repeatable.")
    ] = None,
    stamp: Annotated[
        Literal["original", "now"],
        typer.Option(help="The records' timestamp, from which a delay counts: the one they had, or the time of now."),
    ] = "original",
    again: Annotated[bool, typer.Option("--again", help="Also those that were resent before.")] = False,
    skip_rest: Annotated[
        bool, typer.Option("--skip-rest", help="Never resend those that are not chosen now, unless with --again.")
    ] = False,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Send also what the job would refuse again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    output_format: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or one JSON object a line.")
    ] = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Publish dead letters to their input topics again, with changed headers. Each is resent once.

    Those that the job would refuse again, by the settings given here, stay dead letters: exit code 1. Considers only
    dead letters that are present at the start. Key, value, partition and timestamp stay as they were; a header
    delayline-first-id has the id that a record had at first.

    JSON objects have: id, code, text, partition and offset (in the dead-letter topic), new_id (null if it was not
    sent), refusal (null if there is none).
    """
    from sources.dead_letters.letter import Choice
    from streaming.operations.resend import Request
    from streaming.operations.resend import resend as send_again

    now_ms = time.time_ns() // 1_000_000
    first, last = _offsets(offsets, partition)
    choice = Choice(
        codes=_codes(code or []),
        ids=_ids(identity or []),
        partition=partition,
        first=first,
        last=last,
        since_ms=_instant("--since", since, now_ms),
        until_ms=_instant("--until", until, now_ms),
    )
    changes = _changes(set_header or [], drop_header or [])
    request = Request(choice, changes, again, stamp == "now", not unchecked, skip_rest, dry_run)
    resent = refused = 0
    try:
        for outcome in send_again(settings_of(config, overrides), request):
            typer.echo(_json(outcome) if output_format == "json" else _row(outcome))
            resent += outcome.refusal is None
            refused += outcome.refusal is not None
    finally:
        typer.echo(f"{resent} {'would be ' if dry_run else ''}resent, {refused} refused", err=True)
    if refused:
        raise typer.Exit(1)


def _row(outcome: Outcome) -> str:
    what = f"refused: {outcome.refusal}" if outcome.refusal else outcome.new_id or "would be resent"
    return f"{outcome.letter.id}  {outcome.letter.code}  {what}"


def _json(outcome: Outcome) -> str:
    letter = outcome.letter
    fields = {
        "id": letter.id,
        "code": letter.code,
        "text": letter.text,
        "partition": letter.partition,
        "offset": letter.offset,
        "new_id": outcome.new_id,
        "refusal": outcome.refusal,
    }
    return json.dumps(fields, ensure_ascii=False)


def _codes(codes: list[str]) -> frozenset[str]:
    from conf.errors import Rejected

    known = sorted(error.code for error in Rejected.__subclasses__())
    if wrong := [code for code in codes if code not in known]:
        raise UsageError(f"--code {', '.join(wrong)}: no dead letter has it; the codes are {', '.join(known)}")
    return frozenset(codes)


def _ids(ids: list[str]) -> frozenset[str]:
    if wrong := [each for each in ids if not re.fullmatch(r"[^/]+/\d+/\d+", each, re.ASCII)]:
        raise UsageError(f"--id {', '.join(map(repr, wrong))}: write topic/partition/offset, as delayline-id has it")
    return frozenset(ids)


def _offsets(text: str | None, partition: int | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if partition is None:
        raise UsageError(f"--offsets {text}: name the partition that they are of, with --partition")
    match = re.fullmatch(r"(\d*)(-?)(\d*)", text, re.ASCII)
    if match is None or not (match[1] or match[3]):
        raise UsageError(f"--offsets {text!r}: write 10-20, 10-, -20 or 10")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else None if match[2] else first
    if first is not None and last is not None and last < first:
        raise UsageError(f"--offsets {text}: the last is before the first")
    return first, last


def _instant(option: str, text: str | None, now_ms: int) -> int | None:
    from conf.durations import parse_duration_ms
    from sources.intake.schedule import parse_deliver_at

    if text is None:
        return None
    try:
        # A bare number is an instant, and no duration.
        return parse_deliver_at(os.fsencode(text))
    except BadDeliverAt:
        try:
            return now_ms - parse_duration_ms(text)
        except ValueError:
            forms = "epoch ms, ISO-8601 with an offset (2026-12-24T18:00:00Z), or a duration (2h) for that long ago"
            raise UsageError(f"{option} {text!r}: write {forms}") from None


def _changes(to_set: list[str], to_drop: list[str]) -> HeaderChanges:
    from sources.dead_letters.letter import HeaderChanges

    headers = [header("--set-header", text) for text in to_set]
    to_drop = [utf8("--drop-header", name) for name in to_drop]
    names = [name for name, _ in headers]
    if own := [name for name in [*names, *to_drop] if name.startswith(_OWN)]:
        raise UsageError(f"{', '.join(own)}: headers that begin with {_OWN} are the service's own")
    if both := set(names) & set(to_drop):
        raise UsageError(f"{', '.join(sorted(both))}: either --set-header or --drop-header")
    if "" in to_drop:
        raise UsageError("--drop-header '': name a header")
    return HeaderChanges(headers, frozenset(to_drop))
