"""`delayline release`: release what is staged, in a process of its own."""

from __future__ import annotations

from streaming.cli.members import LogLevel, Name, run_until_signal
from streaming.cli.options import ConfigFile, Overrides, settings_of
from streaming.processes.kinds import Kind


def release(
    name: Name = "",
    log_level: LogLevel = "info",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Release due messages until SIGTERM or Ctrl-C, next to the job or on another host.

    The job starts release.processes of these itself. All release processes of an application share its shards. Prints
    `running` when it has joined them. See docs/operate/processes.md.
    """
    run_until_signal(Kind.RELEASE, settings_of(config, overrides), name, log_level)
