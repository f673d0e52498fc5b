"""Logging: one form of lines and one level, for the driver and for Spark's Python workers."""

from __future__ import annotations

import logging
import os

from conf.errors import UsageError

# The driver's level, in the environment of every Python worker.
LEVEL_VARIABLE = "DELAYLINE_LOG_LEVEL"
_PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
_LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str) -> None:
    """Log Delayline's own lines from `level` on to standard error, and those of libraries from warnings on.

    Raises UsageError for an unknown level.
    """
    if level.lower() not in _LEVELS:
        raise UsageError(f"--log-level {level!r}: one of {', '.join(_LEVELS)}")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def level_now() -> str:
    """Return the level that Delayline's own lines are logged from."""
    return logging.getLevelName(logging.getLogger(_PACKAGES[0]).getEffectiveLevel()).lower()


def configure_worker_logging() -> None:
    """Log in a Python worker as its driver does, which says so in the worker's environment."""
    configure_logging(os.environ.get(LEVEL_VARIABLE, "info"))
