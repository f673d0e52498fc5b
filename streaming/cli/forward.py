"""`delayline forward`: forward what is due soon, in a process of its own."""

from __future__ import annotations

from streaming.cli.members import LogLevel, Name, run_until_signal
from streaming.cli.options import ConfigFile, Overrides, settings_of
from streaming.processes.kinds import Kind


def forward(
    name: Name = "",
    log_level: LogLevel = "info",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Forward messages that are due soon until SIGTERM or Ctrl-C, next to the job or on another host.

    The job starts forward.processes of these itself. Set forward.elsewhere for it if there are others: then all
    forwarders of the application share its input partitions. Prints `running` when it has joined them. See
    docs/operate/processes.md.
    """
    run_until_signal(Kind.FORWARD, settings_of(config, overrides), name, log_level)
