"""A limit on the rate at which a shard delivers: of all output topics together, and of single ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Event

import pyarrow as pa
import pyarrow.compute as pc

from state.shards import shard_of


class RateLimiter:
    """Limits delivery to `per_second` messages a second, on average over committed messages; 0 means no limit.

    An output topic in `by_topic` has its own limit besides. Unused capacity is not saved up: after a pause the rate is
    the same.
    """

    def __init__(self, per_second: float, by_topic: Mapping[str, float]) -> None:
        self._per_second = per_second
        self._by_topic = dict(by_topic)
        # By topic, and by None for all together: when the next message may go.
        self._free_at_s: dict[str | None, float] = {}

    def most_at_once(self, messages: int) -> int:
        """Return how many of `messages` may go together, so that a subscriber has no more than a second's worth."""
        return min(messages, _a_seconds(self._per_second)) if self._per_second else messages

    @property
    def most_at_once_by_topic(self) -> Mapping[str, int]:
        """How many messages of each limited output topic may go together."""
        return {topic: _a_seconds(per_second) for topic, per_second in self._by_topic.items()}

    def wait(self, messages: pa.Table, stopping: Event) -> bool:
        """Wait for the turn of `messages`, which go together; return False if `stopping` is set before it has come."""
        if not self._free_at_s:
            return True
        free_at_s = max(self._free_at_s.get(name, 0.0) for name in (None, *self._limited(messages)))
        wait_s = free_at_s - time.monotonic()
        return wait_s <= 0 or not stopping.wait(wait_s)

    def spend(self, messages: pa.Table) -> None:
        """Count messages that are committed now."""
        if self._per_second:
            self._count(None, messages.num_rows / self._per_second)
        for topic, count in self._limited(messages).items():
            self._count(topic, count / self._by_topic[topic])

    def _count(self, name: str | None, seconds: float) -> None:
        self._free_at_s[name] = max(self._free_at_s.get(name, 0.0), time.monotonic()) + seconds

    def _limited(self, messages: pa.Table) -> dict[str, int]:
        """Return how many of `messages` each limited output topic has, if it has any."""
        if not self._by_topic:
            return {}
        counts = pc.value_counts(messages.column("output_topic")).to_pylist()
        return {each["values"]: each["counts"] for each in counts if each["values"] in self._by_topic}


def shares(rates: Mapping[str, int], partitions: Mapping[str, int], shard: int, shards: int) -> dict[str, float]:
    """Return what one shard of `shards` may release of each topic's rate, in messages/s.

    Its share is that of the topic's partitions to which it delivers; a topic without any is left out.
    """
    own = {
        topic: sum(shard_of(topic, partition, shards) == shard for partition in range(partitions[topic]))
        for topic in rates.keys() & partitions.keys()
    }
    return {topic: rates[topic] * count / partitions[topic] for topic, count in own.items() if count}


def _a_seconds(per_second: float) -> int:
    return max(1, int(per_second))
