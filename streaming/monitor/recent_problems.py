"""The newest warnings and errors of a process's log, for the page."""

from __future__ import annotations

import logging
from collections import deque

_KEPT = 50
_MOST_CHARACTERS = 1_000


class RecentProblems(logging.Handler):
    """Keeps the newest lines from warnings up, each cut to `_MOST_CHARACTERS`. `process` is the name of the process."""

    def __init__(self, process: str) -> None:
        super().__init__(logging.WARNING)
        self._process = process
        self._lines: deque[dict[str, object]] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            text = record.getMessage()[:_MOST_CHARACTERS]
        except Exception:  # noqa: BLE001, whoever logs a wrong line must not fail for it
            self.handleError(record)
            return
        at_ms = int(record.created * 1000)
        line = {"at_ms": at_ms, "process": self._process, "level": record.levelname, "logger": record.name}
        self._lines.append(line | {"message": text})

    def newest(self) -> list[dict[str, object]]:
        """Return the lines, oldest first: time (epoch ms), process, level, logger and message of each."""
        self.acquire()
        try:
            return list(self._lines)
        finally:
            self.release()
