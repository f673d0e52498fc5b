"""The common part of `delayline release` and `delayline forward`: each runs a member of a consumer group."""

from __future__ import annotations

import signal
import socket
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.options import utf8
from streaming.processes.kinds import Kind

if TYPE_CHECKING:
    from conf.settings import Settings

Name = Annotated[
    str,
    typer.Option(
        "--name",
        help="Name of this process, unique in the application. Keep it across restarts: a restarted process then "
        "gets its share of the work back at once. Default: the host's name.",
        show_default=False,
    ),
]
LogLevel = Annotated[str, typer.Option("--log-level", help="Log level: debug, info, warning or error.")]


def run_until_signal(kind: Kind, settings: Settings, name: str, log_level: str) -> None:
    """Run a process of `kind` until SIGTERM or SIGINT. Print `running` when its group has taken it."""
    from conf.kafka.clients import check_clients
    from conf.logs import configure_logging
    from streaming.processes.member import monitored_member

    configure_logging(log_level, settings.monitor.log_format)
    check_clients(settings)
    # Not a threading.Event: a signal may interrupt the thread that holds the event's lock.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))

    def is_stopped(_: Any) -> bool:
        try:
            stop.get_nowait()
        except Empty:
            return False
        return True

    with monitored_member(kind, settings, utf8("--name", name) or socket.gethostname()) as process:
        process.run(is_stopped, on_joined=lambda: typer.echo("running"))
