"""`delayline run`: run the job in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of


def run(
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Start a new checkpoint although this application has delivered before. Delivers all messages "
            "again that are still in the input topics. For one start by hand, never in a unit or a manifest.",
        ),
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="Log level: debug, info, warning or error.")] = "info",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Run the job until SIGTERM or Ctrl-C. The job then finishes the running batch and ends.

    Starts release.processes release processes and forward.processes forwarders, and ends them with the job. Prints
    `running` when the query has started.
    To resume from the checkpoint, after a stop or a crash, use the same command. See docs/operate/start-stop.md, and
    docs/operate/runbooks for each error that ends the job.
    """
    from conf.logs import configure_logging
    from streaming.job.service import run_service

    settings = settings_of(config, overrides)
    configure_logging(log_level, settings.monitor.log_format)
    run_service(settings, fresh, on_started=lambda: typer.echo("running"))
