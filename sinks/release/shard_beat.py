"""Signs of life of the thread that releases a shard, and its waits for brokers."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from sinks.internal_topics.broker_retry import BrokerRetry


class Ender(Protocol):
    """Ends transactions in a thread of its own. Says when it ended the last one, and since when it is ending one.

    Both times are by the monotonic clock.
    """

    ended_s: float
    ending_since_s: float | None


class ShardBeat:
    """Whether the thread of a shard goes on, and is to go on.

    `releasing` says whether messages go out: the logs were read to their ends, and the shard waits for no broker.
    `stopping` is set when the thread is to stop.
    """

    def __init__(self, shard: int, outage_limit_ms: int, stopping: threading.Event) -> None:
        self.releasing = False
        self.stopping = stopping
        self._who, self._outage_limit_ms = f"shard {shard}", outage_limit_ms
        # When the thread last went on, by the monotonic clock.
        self._stepped_s = time.monotonic()

    def step(self) -> None:
        """Note that the thread goes on."""
        self._stepped_s = time.monotonic()

    def retry(self) -> BrokerRetry:
        """Return the retries of one outage. Each wait is a step."""
        return BrokerRetry(self._who, self._outage_limit_ms, self.stopping.is_set, self._wait)

    def still_s(self, ender: Ender | None) -> float:
        """Return for how long the thread, or the `ender` of its transactions, has not gone on, in s."""
        now_s = time.monotonic()
        if ender is None:
            return now_s - self._stepped_s
        # Filling waits for the transactions before: it goes on when they end.
        still_s, ending_since_s = now_s - max(self._stepped_s, ender.ended_s), ender.ending_since_s
        return still_s if ending_since_s is None else max(still_s, now_s - ending_since_s)

    def _wait(self) -> None:
        self.step()
        self.releasing = False
