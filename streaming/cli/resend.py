"""`delayline resend`: publish dead letters to their input topics again, with corrected headers."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from conf.errors import UsageError
from streaming.cli.options import ConfigFile, Overrides, RecordFormat, header, instant_ms, settings_of, utf8

if TYPE_CHECKING:
    from sources.dead_letters.letter import HeaderChanges
    from streaming.operations.resend import Outcome

_RESERVED_PREFIX = "delayline-"


def resend(
    code: Annotated[
        list[str] | None, typer.Option(help="Only dead letters with this error code. Repeatable: any of the codes.")
    ] = None,
    identity: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Only the dead letter with this delayline-id. Repeatable."),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition of the dead-letter topic.")] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Only these offsets of --partition, inclusive: 10-20, 10-, -20 or 10."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT",
            help="Only dead letters published at or after this instant: epoch ms, ISO-8601, or 2h for 2h ago.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only dead letters published before this instant.")
    ] = None,
    set_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set this header; replaces all headers of that name. Repeatable."),
    ] = None,
    drop_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove all headers of this name. Repeatable.")
    ] = None,
    stamp: Annotated[
        Literal["original", "now"],
        typer.Option(help="Timestamp of the new records, from which a delay counts: the original one, or now."),
    ] = "original",
    again: Annotated[bool, typer.Option("--again", help="Include dead letters that were resent before.")] = False,
    skip_rest: Annotated[
        bool,
        typer.Option("--skip-rest", help="Skip all other dead letters for good: only --again resends them."),
    ] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Include dead letters that the job would refuse again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be resent, and change nothing.")] = False,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Publish dead letters to their input topics again, with changed headers. Each is resent once.

    Dead letters that the job would refuse again under the given settings are not resent; the exit code is then 1.
    Considers only dead letters present at start. Key, value, partition and timestamp stay the same; the header
    delayline-first-id has the id that the record had first.

    JSON objects have: id, code, text, partition and offset (in the dead-letter topic), new_id (null if not sent),
    refusal (or null).
    """
    from sources.dead_letters.letter import Choice
    from streaming.operations.resend import Request
    from streaming.operations.resend import resend as resend_letters

    now_ms = time.time_ns() // 1_000_000
    first, last = _offsets(offsets, partition)
    choice = Choice(
        codes=_codes(code or []),
        ids=_ids(identity or []),
        partition=partition,
        first=first,
        last=last,
        since_ms=instant_ms("--since", since, now_ms, ago=True),
        until_ms=instant_ms("--until", until, now_ms, ago=True),
    )
    changes = _changes(set_header or [], drop_header or [])
    request = Request(choice, changes, again, stamp == "now", not unchecked, skip_rest, dry_run)
    resent = refused = 0
    try:
        for outcome in resend_letters(settings_of(config, overrides), request):
            typer.echo(_json(outcome) if output_format == "json" else _row(outcome))
            resent += outcome.refusal is None
            refused += outcome.refusal is not None
    finally:
        typer.echo(f"{resent} {'would be ' if dry_run else ''}resent, {refused} refused", err=True)
    if refused:
        raise typer.Exit(1)


def _row(outcome: Outcome) -> str:
    from conf.printable import printable

    result = f"refused: {outcome.refusal}" if outcome.refusal else outcome.new_id or "would be resent"
    # Anybody who may write to the dead-letter topic chooses the code.
    return f"{outcome.letter.id}  {printable(outcome.letter.code)}  {result}"


def _json(outcome: Outcome) -> str:
    from streaming.status.json_values import json_line

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
    return json_line(fields)


def _codes(codes: list[str]) -> frozenset[str]:
    from conf.rejected import Rejected

    known = sorted(error.code for error in Rejected.__subclasses__())
    if unknown := [code for code in codes if code not in known]:
        raise UsageError(f"--code {', '.join(unknown)}: unknown dead-letter code. The codes are {', '.join(known)}")
    return frozenset(codes)


def _ids(ids: list[str]) -> frozenset[str]:
    if malformed := [each for each in ids if not re.fullmatch(r"[^/]+/\d+/\d+", each, re.ASCII)]:
        raise UsageError(f"--id {', '.join(map(repr, malformed))}: write topic/partition/offset, as in delayline-id")
    return frozenset(ids)


def _offsets(text: str | None, partition: int | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if partition is None:
        raise UsageError(f"--offsets {text}: --partition is missing")
    match = re.fullmatch(r"(\d*)(-?)(\d*)", text, re.ASCII)
    if match is None or not (match[1] or match[3]):
        raise UsageError(f"--offsets {text!r}: write 10-20, 10-, -20 or 10")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else None if match[2] else first
    if first is not None and last is not None and last < first:
        raise UsageError(f"--offsets {text}: the last offset is before the first")
    return first, last


def _changes(to_set: list[str], to_drop: list[str]) -> HeaderChanges:
    from sources.dead_letters.letter import HeaderChanges
    from state.names import NAME_HEADER

    headers = [header("--set-header", text) for text in to_set]
    to_drop = [utf8("--drop-header", name) for name in to_drop]
    names = [name for name, _ in headers]
    # To leave its name out is the remedy for an occurrence that would get the name of its message.
    changed = [*names, *(name for name in to_drop if name != NAME_HEADER)]
    if reserved := [name for name in changed if name.startswith(_RESERVED_PREFIX)]:
        raise UsageError(f"{', '.join(reserved)}: headers that begin with {_RESERVED_PREFIX} are reserved")
    if both := set(names) & set(to_drop):
        raise UsageError(f"{', '.join(sorted(both))}: use either --set-header or --drop-header")
    if "" in to_drop:
        raise UsageError("--drop-header '': the name of the header is empty")
    return HeaderChanges(headers, frozenset(to_drop))
