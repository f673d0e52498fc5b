"""`delayline run`: the job itself, in the foreground."""

from __future__ import annotations

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
    from conf.logs import configure_logging
    from streaming.job.service import run_service

    configure_logging(log_level)
    run_service(settings_of(config, overrides), fresh, on_started=lambda: typer.echo("running"))
