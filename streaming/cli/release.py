"""`delayline release`: release what the job hands over, in a process of its own."""

from __future__ import annotations

import signal
import socket
from queue import Empty, SimpleQueue
from typing import Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of, utf8


def release(
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Name of this process among all of the application. Keep it from start to start: a process that is "
            "restarted has its shards back at once. Default: the host's name.",
            show_default=False,
        ),
    ] = "",
    log_level: Annotated[str, typer.Option("--log-level", help="Log level: debug, info, warning or error.")] = "info",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Release due messages until SIGTERM or Ctrl-C, beside the job or on another host.

    The job starts release.processes of these itself. All release processes of an application share its shards. Prints
    `running` when it has joined them.
    """
    from conf.kafka.clients import check_clients
    from conf.logs import configure_logging
    from sinks.release.process import ReleaseProcess
    from streaming.monitor.release_metrics import monitored_release

    settings = settings_of(config, overrides)
    configure_logging(log_level, settings.monitor.log_format)
    check_clients(settings)
    # Not a threading.Event: a signal may interrupt the thread that holds the event's lock.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))

    def is_stopped(_: ReleaseProcess) -> bool:
        try:
            stop.get_nowait()
        except Empty:
            return False
        return True

    member = utf8("--name", name) or socket.gethostname()
    process = ReleaseProcess(settings, member)
    with monitored_release(process, settings):
        process.run(is_stopped, on_joined=lambda: typer.echo("running"))
