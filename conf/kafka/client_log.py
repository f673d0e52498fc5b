"""The log of a Kafka client: what librdkafka says goes where the rest does, and not again with each try."""

from __future__ import annotations

import logging
import re
import time

# A client that cannot connect tries it twenty times a second, and says so each time.
_SILENT_S = 30.0
_MOST_LINES = 1_000
# "Connection refused (after 0ms in state CONNECT)": what differs between two tries.
_DURATION = re.compile(r"\d+ms")


class NotAgain(logging.Filter):
    """Drops a line that was let through in the last `silent_s`, but for the durations in it."""

    def __init__(self, silent_s: float = _SILENT_S) -> None:
        super().__init__()
        self._silent_s = silent_s
        # When each line was let through, by the monotonic clock.
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now_s = _DURATION.sub("", record.getMessage()), time.monotonic()
        if now_s < self._said_s.get(line, -self._silent_s) + self._silent_s:
            return False
        if len(self._said_s) >= _MOST_LINES:
            self._said_s = {}
        self._said_s[line] = now_s
        return True


# One for all clients: several threads may ask it, and at worst a line comes twice.
_NOT_AGAIN = NotAgain()


def client_log(log: logging.Logger, not_again: NotAgain | None = None) -> logging.Logger:
    """Return what a client of the module with the logger `log` takes as its `logger`."""
    own = log.getChild("librdkafka")
    own.addFilter(not_again or _NOT_AGAIN)
    return own
