"""`delayline repair`: damaged files of sealed buckets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of

if TYPE_CHECKING:
    from streaming.operations.corruption import CorruptSegment
    from streaming.operations.repair import Repair


def repair(
    skip: Annotated[
        bool, typer.Option("--skip", help="Remove what cannot be read from the table, after writing the report.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --skip: where the ids of all messages that are lost are written, as JSON.",
            show_default="delayline-repair-<epoch ms>.json",
        ),
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Find damaged files among the sealed messages of a stopped job, and go on without them if need be.

    Reads the whole table, and says which files cannot be read, which messages wait in them, and how many of those
    `delayline rebuild` can accept again from the input topics. Changes nothing without --skip. Exit code 1 if
    there is damage that was left.
    """
    from streaming.operations.repair import repair as mend

    file = report or Path(f"delayline-repair-{time.time_ns() // 1_000_000}.json")
    found = mend(settings_of(config, overrides), skip, file)
    for line in _lines(found):
        typer.echo(line)
    if found.taken_out:
        typer.echo(f"taken out of the table; the ids are in {typer.format_filename(file)}")
        if any(lost.accepted_again for lost in found.lost):
            typer.echo(
                "before the job runs again, let `delayline rebuild --discard-checkpoint` accept again what it can"
            )
    elif found.corruption.files or found.corruption.segments:
        raise typer.Exit(1)


def _lines(found: Repair) -> list[str]:
    if not found.corruption.files and not found.corruption.segments:
        return [f"all of {found.table} can be read"]
    files = [
        f"{found.table}/{file.path}: {file.readable} of {file.rows} rows can be read" for file in found.corruption.files
    ]
    lost = sum(len(one.offsets) for one in found.lost)
    again = sum(len(one.accepted_again) for one in found.lost)
    return [
        *files,
        *(_of_segment(segment) for segment in found.corruption.segments),
        f"{lost} waiting messages are lost; `delayline rebuild` can accept {again} of them again from the input topics",
    ]


def _of_segment(segment: CorruptSegment) -> str:
    from streaming.storage.unreadable_bucket import instant

    bucket, shard, number = segment.identity
    name = f"bucket {bucket}, shard {shard}, segment {number}"
    if (known := segment.described) is None:
        return f"{name}: its metadata is lost, and is made anew of its {segment.readable} messages that can be read"
    due = f"due from {instant(known.min_deliver_at_ms)} to {instant(known.max_deliver_at_ms)}"
    return f"{name}, {due}: {segment.readable} of {known.count} messages can be read"
