"""`delayline repair`: find corrupt files of sealed buckets and remove them from the table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conf.errors import UsageError
from streaming.cli.options import ConfigFile, Overrides, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.operations.corruption import Corruption, CorruptSegment
    from streaming.operations.ready_log import RepairedShard
    from streaming.operations.repair import Repair


def repair(
    skip: Annotated[
        bool,
        typer.Option("--skip", help="Write the report, then remove all unreadable rows from the table."),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --skip: the file for the ids of all lost messages, as JSON.",
            show_default="delayline-repair-<epoch ms>.json",
        ),
    ] = None,
    ready_log: Annotated[
        bool,
        typer.Option(
            "--ready-log",
            help="Instead, skip missing or unreadable records of the ready topic and the near topic, and print how "
            "many messages are lost.",
        ),
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Find corrupt files among the sealed messages of a stopped job, and with --skip remove them from the table.

    Reads the whole table. Prints which files cannot be read, which messages wait in them, and how many of these
    `delayline rebuild` can accept again from the input topics. Changes nothing without --skip: exit code 1 if a file
    is corrupt. See docs/operate/runbooks/bucket-unreadable.md and, for --ready-log, ready-log-lost.md there.
    """
    if ready_log:
        _repair_ready_log(config, overrides, combined=skip or report is not None)
        return
    from streaming.operations.repair import repair as repair_table

    file = report or Path(f"delayline-repair-{time.time_ns() // 1_000_000}.json")
    result = repair_table(settings_of(config, overrides), skip, file)
    for line in _lines(result):
        typer.echo(line)
    if result.taken_out:
        typer.echo(f"removed from the table; the ids are in {typer.format_filename(file)}")
        accepts_again = any(lost.accepted_again for lost in result.lost)
        if result.interrupted:
            typer.echo(
                f"before you start the job, run `delayline {result.interrupted}`: a switch to a new checkpoint was "
                "interrupted, and this seals its messages again"
            )
        elif accepts_again or result.corruption.may_lose_schedules:
            what = "accept these messages again" if accepts_again else "continue the schedules"
            typer.echo(f"before you start the job, run `delayline rebuild --discard-checkpoint` to {what}")
    elif result.corruption.files or result.corruption.segments:
        raise typer.Exit(1)


def _repair_ready_log(config: Path | None, overrides: list[str] | None, combined: bool) -> None:
    from streaming.operations.ready_log import repair_ready_log

    if combined:
        raise UsageError("--ready-log excludes --skip and --report")
    is_readable = True
    for shard in repair_ready_log(settings_of(config, overrides)):
        is_readable = False
        typer.echo(f"shard {shard.shard}: {shard.reason}")
        twice = "" if shard.had_position else ", some perhaps a second time"
        typer.echo(f"shard {shard.shard}: {_loss(shard)}; {shard.left} are left and will be released{twice}")
        for topic in shard.refilled:
            typer.echo(
                f"shard {shard.shard}: {topic} is another topic than before. If it was filled from a copy, messages "
                "that were delivered before come a second time"
            )
    if is_readable:
        typer.echo("the ready log and the near log are readable in all shards")


def _loss(shard: RepairedShard) -> str:
    if not shard.had_position:
        return "whether messages are lost is unknown, since the shard had no position"
    if shard.lost is None:
        return "an unknown number of messages is lost, since the progress topic was lost too"
    return f"{shard.lost} messages are lost"


def _lines(result: Repair) -> list[str]:
    if not result.corruption.files and not result.corruption.segments:
        return [f"all of {result.table} is readable"]
    files = [
        f"{result.table}/{file.path}: {file.readable} of {file.rows} rows are readable"
        for file in result.corruption.files
    ]
    lost = sum(len(partition.offsets) for partition in result.lost)
    again = sum(len(partition.accepted_again) for partition in result.lost)
    return [
        *files,
        *(_segment_line(segment) for segment in result.corruption.segments),
        *_loss_lines(result.corruption),
        f"{lost} waiting messages are lost; `delayline rebuild` can accept {again} of them again from the input topics",
    ]


def _loss_lines(corruption: Corruption) -> Iterator[str]:
    from state.buckets.parts import IdRows

    if corruption.may_lose_schedules:
        yield "messages that repeat may be among the lost ones; `delayline rebuild` continues schedules"
    if rows := corruption.lost_rows(IdRows.CANCELLED):
        yield (
            f"{rows} rows of cancelled ids are lost; messages that were cancelled, or delivered now, are delivered when"
            " they are due. Cancel them again"
        )
    if rows := corruption.lost_rows(IdRows.NAMED):
        yield f"{rows} rows of names are lost; a new message does not replace the one that waits under such a name"
    if rows := corruption.lost_rows(IdRows.RETIMED):
        yield f"{rows} rows of due times are lost; a rebuild takes these messages to be due as their records say"


def _segment_line(segment: CorruptSegment) -> str:
    from conf.instants import instant

    bucket, shard, number = segment.identity
    name = f"bucket {bucket}, shard {shard}, segment {number}"
    if (known := segment.described) is None:
        return f"{name}: its metadata is lost; --skip rebuilds it from the {segment.readable} readable messages"
    due = f"due from {instant(known.min_deliver_at_ms)} to {instant(known.max_deliver_at_ms)}"
    return f"{name}, {due}: {segment.readable} of {known.count} messages are readable"
