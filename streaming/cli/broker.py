"""`delayline broker` and `delayline jars`: a test broker and the Java libraries, for one machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from conf.end_signals import deferred
from streaming.cli.options import ConfigFile, Overrides, settings_of, utf8

_WATCH_S = 0.2
_DEFAULT_FOLDER = Path("data/broker")


def jars(
    s3: Annotated[bool, typer.Option("--s3", help="Also those that a storage.path on S3 (s3a://) needs.")] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Download the Java libraries of Spark's connectors and of the embedded broker. Needed once.

    Downloads about 60 MB into this Python environment, from Maven Central, jars.mirror or jars.folder, and checks each
    file's SHA-256; skips files that exist. Then Java writes Spark's classes to an archive (160 MB), which makes each
    start faster.
    """
    from conf.java.cds_archive import make_cds_archive
    from conf.java.jars.fetch import GROUPS, fetch_jars
    from conf.java.jars.installed import S3

    jars = settings_of(config, overrides).jars
    groups = (*GROUPS, S3) if s3 else GROUPS
    fetch_jars(typer.echo, jars.mirror, Path(jars.folder) if jars.folder else None, groups)
    make_cds_archive(typer.echo)


def broker(
    directory: Annotated[
        Path, typer.Option("--dir", help="Folder for the broker's data, configuration and log.")
    ] = _DEFAULT_FOLDER,
    host: Annotated[str, typer.Option(help="Address to listen on and to advertise to clients.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 picks a free one.")] = 9092,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Run one Kafka node until Ctrl-C or SIGTERM, without Docker. For a first try and for tests.

    Prints "listening on HOST:PORT" when it accepts requests. The data stays in --dir for the next start.
    """
    from streaming.local.broker import EmbeddedBroker

    settings_of(config, overrides)
    node = EmbeddedBroker(directory, port, utf8("--host", host))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    try:
        typer.echo(f"starting in {node.directory}", err=True)
        node.start()
        typer.echo(f"listening on {node.bootstrap}")
        while True:
            # A signal inside of it could leave a lock of the process held, for which `stop` would wait forever.
            with deferred():
                node.check()
            time.sleep(_WATCH_S)
    finally:
        node.stop()


def _exit(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the broker's shutdown.
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    raise SystemExit(0)
