"""`delayline rescale` and `delayline rebuild`: a new checkpoint for a job that does not run."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of


def rescale(
    shards: Annotated[int, typer.Option("--shards", min=1, max=1024, help="The number of shards to move to.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Move a stopped job to another number of shards. Nothing is lost or delivered twice.

    Finishes the batch that was cut off, if there is one, seals what the checkpoint holds, and puts a new checkpoint in
    its place, which goes on from there. If it is cut off, run it again. Then set bucket.shards and start the job.
    """
    from streaming.operations.rescale import rescale as move

    done = move(settings_of(config, overrides), shards)
    typer.echo(f"moved from {done.before} to {done.after} shards; {done.sealed} messages sealed")
    typer.echo(f"the checkpoint before is kept at {done.kept_at}: delete it when the job has run")
    typer.echo(f"now set bucket.shards = {done.after}")


def rebuild(
    discard: Annotated[
        bool, typer.Option("--discard-checkpoint", help="Put a checkpoint aside that is there but cannot be used.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Make a new checkpoint for a stopped job that lost its own, from the tables, the input and the progress topic.

    Nothing is delivered twice, and nothing is lost that is still in the tables or in the input topics. Settings must
    be those under which the messages were accepted. docs/operate.md says what is guaranteed, and on which conditions.
    """
    from streaming.operations.rebuild import rebuild as make

    done = make(settings_of(config, overrides), discard, now_ms=time.time_ns() // 1_000_000)
    if done.kept_at:
        typer.echo(f"the checkpoint before is kept at {done.kept_at}")
    typer.echo(f"{done.resealed} messages were taken up again; the job goes on with `delayline run`")
