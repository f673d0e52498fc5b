"""`delayline broker` and `delayline jars`: what is needed around the job on one machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of, utf8

_WATCH_S = 0.2
_DEFAULT_FOLDER = Path("data/broker")


def jars(config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Fetch the Java libraries of Spark's connectors and of the embedded broker, once.

    About 60 MB from Maven Central into this Python environment. What is there already is left alone. Then lets Java
    write Spark's classes to an archive (160 MB), which makes each start faster.
    """
    from conf.java.cds_archive import make_cds_archive
    from conf.java.jars import fetch_jars

    settings_of(config, overrides)
    fetch_jars(typer.echo)
    make_cds_archive(typer.echo)


def broker(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where it keeps data, configuration and log.")
    ] = _DEFAULT_FOLDER,
    host: Annotated[str, typer.Option(help="The address it listens on and tells clients.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 picks a free one.")] = 9092,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Run one Kafka node, without docker, until Ctrl-C or SIGTERM. For trying out and testing.

    Prints "listening on HOST:PORT" once it serves. Its data stays in --dir for the next start.
    """
    from streaming.local.broker import EmbeddedBroker

    settings_of(config, overrides)
    node = EmbeddedBroker(directory, port, utf8("--host", host))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        typer.echo(f"starting in {node.directory}", err=True)
        node.start()
        typer.echo(f"listening on {node.bootstrap}")
        while True:
            node.check()
            time.sleep(_WATCH_S)
    finally:
        node.stop()


def _end(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second signal must not cut the broker's own end short.
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, signal.SIG_IGN)
    raise SystemExit(0)
