"""`delayline health`: ask a running process whether it makes progress."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of

_TIMEOUT_S = 3.0
# An address that stands for all of a host's is asked on this host.
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104, nothing listens here


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
    import http.client
    import json

    from conf.errors import UsageError

    monitor = settings_of(config, overrides).monitor
    address = monitor.job if of == "job" else monitor.release
    host, _, port = address.rpartition(":")
    if port in ("", "0"):
        raise UsageError(
            f"monitor.{of} = {address!r}: set it to an address with a port, for this process and for that one"
        )
    connection = http.client.HTTPConnection(f"{_ANY.get(host, host)}:{port}", timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz" if live else "/readyz")
        answer = connection.getresponse()
        reasons = json.loads(answer.read())["reasons"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as problem:
        typer.echo(f"no answer from {address}: {problem or type(problem).__name__}")
        raise typer.Exit(1) from problem
    good, wanted = answer.status == 200, "live" if live else "ready"
    typer.echo(": ".join([wanted if good else f"not {wanted}", *(["; ".join(reasons)] if reasons else [])]))
    if not good:
        raise typer.Exit(1)
