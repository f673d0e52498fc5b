"""The demo's subscribers: everything on the output topics and the dead-letter topic, as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sources.subscriber import Received, Subscriber

_POLL_MS = 200
_JOIN_S = 10.0
_LEADER_TIMEOUT_S = 15.0


class Outputs:
    """Reads `topics` from their beginning, committed records only, a thread for each. `got` fills as they come."""

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self.got: list[Received] = []
        # The message ids of `got`, for those who ask often.
        self.ids: set[str | None] = set()
        self.problem: Exception | None = None
        self._stop = threading.Event()
        self._changed_s = time.monotonic()
        self._subscribers = ExitStack()
        self._threads = []
        for topic in topics:
            subscriber = self._subscribers.enter_context(_subscriber(settings, topic))
            self._threads.append(threading.Thread(target=self._read, args=(subscriber,), daemon=True))
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what went wrong with the reading."""
        if self.problem is not None:
            raise self.problem

    def settle(self, quiet_s: float, limit_s: float) -> None:
        """Wait until nothing has come for `quiet_s`, at most `limit_s`: what is doubled would come last."""
        deadline_s = time.monotonic() + limit_s
        self._changed_s = time.monotonic()
        while time.monotonic() < min(deadline_s, self._changed_s + quiet_s):
            self.check()
            time.sleep(0.05)

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._subscribers.close()

    def _read(self, subscriber: Subscriber) -> None:
        try:
            while not self._stop.is_set():
                for record in subscriber.records(timeout_ms=_POLL_MS):
                    self.got.append(record)
                    self.ids.add(record.id)
                    self._changed_s = time.monotonic()
        except Exception as problem:  # noqa: BLE001, the main thread raises it
            self.problem = problem


def _subscriber(settings: Settings, topic: str) -> Subscriber:
    """Subscribe from the beginning. The partitions of a topic just made have no leader for a moment."""
    deadline_s = time.monotonic() + _LEADER_TIMEOUT_S
    while True:
        try:
            return Subscriber(settings, topic, from_beginning=True)
        except BrokerUnreachable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
