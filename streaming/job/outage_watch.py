"""The watch over an outage of Kafka between batches, where Spark waits for the input offsets without a log line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from streaming.checkpoint.checkpoint import PlannedBatch

log = logging.getLogger(__name__)

_EVERY_S = 5.0
# How the status message of Spark's query begins while it waits for offsets.
_ASKING = "Getting offsets"


class OutageWatch:
    """Detects that no new batch follows because Kafka does not answer.

    `doing` returns the status message of Spark's query.
    """

    def __init__(self, doing: Callable[[], str], now_s: Callable[[], float] = time.monotonic) -> None:
        self._doing = doing
        self._now_s = now_s
        self._newest: PlannedBatch | None = None
        self._since_s = self._checked_s = now_s()
        self._is_on = False

    def check(self, newest: PlannedBatch | None) -> bool:
        """Return whether no batch follows `newest` because Kafka does not return the offsets of the input.

        Looks, and warns, every five seconds.
        """
        now_s = self._now_s()
        if newest != self._newest:
            self._newest, self._since_s, self._checked_s = newest, now_s, now_s
            self._is_on = False
        elif now_s - self._checked_s >= _EVERY_S:
            self._checked_s = now_s
            self._is_on = self._doing().startswith(_ASKING)
            if self._is_on:
                log.warning(
                    "Kafka does not answer: no batch for %.0f s, because the offsets of the input cannot be read",
                    now_s - self._since_s,
                )
        return self._is_on
