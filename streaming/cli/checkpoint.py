"""`delayline rescale` and `delayline rebuild`: make a new checkpoint for a stopped job."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of


def rescale(
    shards: Annotated[int, typer.Option("--shards", min=1, max=1024, help="The new number of shards.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Move a stopped job to another number of shards. Nothing is lost or delivered twice.

    Finishes an interrupted batch, if there is one, releases staged messages (up to clock.horizon, or longer with a
    limited rate), seals all messages of the checkpoint, and replaces the checkpoint with a new one. If the command is
    interrupted, run it again. Afterwards set bucket.shards and start the job. See docs/operate/rescale.md.
    """
    from streaming.operations.rescale import rescale as rescale_job

    done = rescale_job(settings_of(config, overrides), shards)
    typer.echo(f"moved from {done.before} to {done.after} shards; {done.sealed} messages sealed")
    typer.echo(f"the old checkpoint is still at {done.replaced}: delete it when the job has run")
    typer.echo(f"now set bucket.shards = {done.after}")


def rebuild(
    discard: Annotated[
        bool, typer.Option("--discard-checkpoint", help="Replace a checkpoint that exists and cannot be used.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Make a new checkpoint for a stopped job that lost its own, from the table, the input and the internal topics.

    First releases staged messages (up to clock.horizon, or longer with a limited rate). Nothing is delivered twice. No
    message is lost that is still in the table or in the input topics. The settings must be those under which the
    messages were accepted. See docs/operate/rebuild.md for the conditions.
    """
    from streaming.operations.rebuild import rebuild as rebuild_checkpoint

    done = rebuild_checkpoint(settings_of(config, overrides), discard, now_ms=time.time_ns() // 1_000_000)
    if done.replaced:
        typer.echo(f"the old checkpoint is still at {done.replaced}: delete it when the job has run")
    typer.echo(f"{done.resealed} messages were sealed again; now start the job with `delayline run`")
