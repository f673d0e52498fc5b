"""A broker that a test makes up: what it says about topics, and its clock."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from sinks.topics.limits import TopicAccess

GONE, HIDDEN, BARRED = TopicAccess("gone"), TopicAccess("hidden"), TopicAccess("barred")
OPEN = TopicAccess("open", 4)


class MadeUpBroker(threading.Event):
    """A broker's answers about topics, and a clock. Waiting on it takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.topics: dict[str, TopicAccess] = {"delayline-position": TopicAccess("open", 1)}
        # Its answers after the first wait, by topic.
        self.later: dict[str, TopicAccess] = {}
        self.asked = 0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0
        self.topics |= self.later
        return self.is_set()

    def access(self, _: Mapping[str, str], topics: Collection[str]) -> dict[str, TopicAccess]:
        self.asked += 1
        return {topic: self.topics[topic] for topic in topics if topic in self.topics}
