"""Logging: one line format and one level for the driver and for Spark's Python workers."""

from __future__ import annotations

import logging
import os

from conf.errors import UsageError

# Passes the level of the driver to every Python worker.
LEVEL_VARIABLE = "DELAYLINE_LOG_LEVEL"
_PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
_LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str) -> None:
    """Log to standard error: Delayline's own lines from `level` up, those of libraries from warnings up.

    Raises UsageError for an unknown level.
    """
    if level.lower() not in _LEVELS:
        raise UsageError(f"--log-level {level!r}: one of {', '.join(_LEVELS)}")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def level_now() -> str:
    """Return the level from which Delayline's own lines are logged."""
    return logging.getLevelName(logging.getLogger(_PACKAGES[0]).getEffectiveLevel()).lower()


def configure_worker_logging() -> None:
    """Log in a Python worker at the level that its driver has set in the environment."""
    configure_logging(os.environ.get(LEVEL_VARIABLE, "info"))
