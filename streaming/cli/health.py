"""`delayline health`: ask a running process whether it makes progress."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of


def health(
    of: Annotated[
        Literal["job", "release"], typer.Argument(help="The process that is asked: at monitor.job or monitor.release.")
    ] = "job",
    live: Annotated[
        bool, typer.Option("--live", help="Ask whether it makes progress, not whether it is on time.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Say whether the job, or a release process, is ready: whether messages leave on time as far as it knows.

    Exit code 0 if it is, 1 if it is not or does not answer, with the reasons. Starts no Spark and asks no broker.
    """
    import json

    from conf.errors import UsageError
    from streaming.monitor.client import NoAnswer, ask

    monitor = settings_of(config, overrides).monitor
    address = monitor.job if of == "job" else monitor.release
    if address.rpartition(":")[2] in ("", "0"):
        raise UsageError(
            f"monitor.{of} = {address!r}: set it to an address with a port, for this process and for that one"
        )
    try:
        answer = ask(address, "/healthz" if live else "/readyz")
        reasons = json.loads(answer.body)["reasons"]
    except NoAnswer as problem:
        typer.echo(str(problem))
        raise typer.Exit(1) from problem
    except (ValueError, KeyError, TypeError) as problem:
        typer.echo(f"no answer from {address}: another server than Delayline's answers there")
        raise typer.Exit(1) from problem
    good, wanted = answer.code == 200, "live" if live else "ready"
    typer.echo(": ".join([wanted if good else f"not {wanted}", *(["; ".join(reasons)] if reasons else [])]))
    if not good:
        raise typer.Exit(1)
