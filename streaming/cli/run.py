"""`delayline run`: the job itself, in the foreground."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of


def run(
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Start a new checkpoint although this application has delivered before: "
            "all that is still in the input topics is delivered again.",
        ),
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Run the job until SIGTERM or Ctrl-C, which end it after the running batch.

    Prints `running` when the query has started. Restart it from its checkpoint with the same command,
    whatever ended it.
    """
    from conf.errors import UsageError
    from streaming.job.service import run_service

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise UsageError(f"--log-level {log_level!r}: one of debug, info, warning, error")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    for room in ("conf", "sources", "state", "sinks", "streaming"):
        logging.getLogger(room).setLevel(level)
    run_service(settings_of(config, overrides), fresh, on_started=lambda: typer.echo("running"))
