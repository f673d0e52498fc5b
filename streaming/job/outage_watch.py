"""Saying that the job waits for Kafka, where Spark waits in silence: for the offsets of the input, between batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from streaming.checkpoint.checkpoint import PlannedBatch

log = logging.getLogger(__name__)

_EVERY_S = 5.0
# What Spark's query says of itself while it asks.
_ASKING = "Getting offsets"


class OutageWatch:
    """Compares the newest batch with what it was at the last look. `doing` says what the query is at."""

    def __init__(self, doing: Callable[[], str], now_s: Callable[[], float] = time.monotonic) -> None:
        self._doing = doing
        self._now_s = now_s
        self._newest: PlannedBatch | None = None
        self._since_s = self._asked_s = now_s()
        self._is_on = False

    def check(self, newest: PlannedBatch | None) -> bool:
        """Say whether no batch follows `newest`, since the offsets of the input are not to be had.

        Warns every five seconds while that is so.
        """
        now_s = self._now_s()
        if newest != self._newest:
            self._newest, self._since_s, self._asked_s = newest, now_s, now_s
            self._is_on = False
        elif now_s - self._asked_s >= _EVERY_S:
            self._asked_s = now_s
            self._is_on = self._doing().startswith(_ASKING)
            if self._is_on:
                log.warning(
                    "Kafka does not answer: no batch for %.0f s, as the offsets of the input are not to be had",
                    now_s - self._since_s,
                )
        return self._is_on
