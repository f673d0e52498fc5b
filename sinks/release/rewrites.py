"""How often a transaction is written again because topics refuse it. Tries are logged, and their number is limited."""

from __future__ import annotations

import logging
import threading
import time

from conf.rejected import Rejected
from sinks.internal_topics.position import Position

log = logging.getLogger(__name__)

# A search finds the records to blame in fewer tries. After this many, all of the topic's records count as refused.
MOST_REWRITES = 64
# This many tries follow each other without a pause: enough to find a few records.
_QUICK, _PAUSE_S = 16, 0.25
_LOG_EVERY_S = 60.0


class Rewrites:
    """Counts the tries of the first transaction in flight of a shard, for each topic that refuses it."""

    def __init__(self, shard: int, stopping: threading.Event) -> None:
        self._shard = shard
        self._stopping = stopping
        self._of: tuple[object, ...] | None = None
        self._counts: dict[str, int] = {}
        # When a refusal of each topic was logged last, by the monotonic clock.
        self._logged_s: dict[str, float] = {}

    def count(self, position: Position, topic: str, error: Rejected) -> int:
        """Count a refusal of the transaction before `position`, and return how many of `topic` there were.

        Logs it, once a minute for each topic, and pauses if there were many.
        """
        if position.mark != self._of:
            self._of, self._counts = position.mark, {}
        count = self._counts[topic] = self._counts.get(topic, 0) + 1
        now_s = time.monotonic()
        if now_s - self._logged_s.get(topic, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_s[topic] = now_s
            log.warning(
                "shard %d: writing a transaction again without the records that %s refuses: %s",
                self._shard,
                topic,
                error,
            )
        if count > _QUICK:
            self._stopping.wait(_PAUSE_S)
        return count
