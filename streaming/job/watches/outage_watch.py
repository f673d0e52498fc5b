"""The watch over an outage of Kafka between batches, where Spark waits for the input offsets without a log line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from state.checkpoint.planned_batch import PlannedBatch

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
        # Since when Spark has asked for offsets, as far as known; None while it does something else.
        self._asking_since_s: float | None = None
        self._warned_s = 0.0

    def check(self, newest: PlannedBatch | None) -> bool:
        """Return whether no batch follows `newest` because Kafka does not return the offsets of the input.

        Warns every five seconds.
        """
        now_s = self._now_s()
        if newest != self._newest or not self._doing().startswith(_ASKING):
            self._newest, self._asking_since_s = newest, None
            return False
        if self._asking_since_s is None:
            self._asking_since_s = self._warned_s = now_s
        if now_s - self._warned_s >= _EVERY_S:
            self._warned_s = now_s
            log.warning(
                "Kafka does not answer: the input offsets cannot be read for %.0f s, and no batch begins",
                now_s - self._asking_since_s,
            )
        return now_s - self._asking_since_s >= _EVERY_S
