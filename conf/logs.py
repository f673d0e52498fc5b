"""Logging: one format and one level for the driver, its release processes, and Spark's Python workers."""

from __future__ import annotations

import json
import logging
import os

from conf.errors import UsageError
from conf.instants import instant

# Pass level and format of the driver to every Python worker.
LEVEL_VARIABLE = "DELAYLINE_LOG_LEVEL"
FORMAT_VARIABLE = "DELAYLINE_LOG_FORMAT"
_PACKAGES = ("conf", "sources", "state", "sinks", "streaming")
_LEVELS = ("debug", "info", "warning", "error")


class _Text(logging.Formatter):
    """A line of text: `2026-12-24T18:00:00.000Z INFO sinks.release.shard: ...`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return instant(int(record.created * 1000))


class _Json(logging.Formatter):
    """One JSON object, with the keys of `conf/java/log4j2-json.properties`."""

    def format(self, record: logging.LogRecord) -> str:
        at_ms = int(record.created * 1000)
        fields = {
            "time": instant(at_ms),
            "time_ms": at_ms,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


_FORMATS: dict[str, type[logging.Formatter]] = {"text": _Text, "json": _Json}


def configure_logging(level: str, log_format: str = "text") -> None:
    """Log to standard error: Delayline's own lines from `level` up, and warnings and errors of libraries.

    `log_format` is one of `monitor.log_format`. Raises UsageError for an unknown level.
    """
    if level.lower() not in _LEVELS:
        raise UsageError(f"--log-level {level!r}: allowed is one of {', '.join(_LEVELS)}")
    # Does nothing if the process, such as one of pytest, has a handler already.
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_FORMATS[log_format]())
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def level_now() -> str:
    """Return the level from which Delayline's own lines are logged."""
    return logging.getLevelName(logging.getLogger(_PACKAGES[0]).getEffectiveLevel()).lower()


def format_now() -> str:
    """Return the format of the log of this process."""
    formatters = {type(handler.formatter) for handler in logging.getLogger().handlers}
    return "json" if _Json in formatters else "text"


def configure_worker_logging() -> None:
    """Log in a Python worker as its driver has set in the environment."""
    configure_logging(os.environ.get(LEVEL_VARIABLE, "info"), os.environ.get(FORMAT_VARIABLE, "text"))
