"""A limit on the rate at which a shard delivers: of all output topics together, and of single ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from threading import Event

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.shards import shard_of

# How long one wait lasts at most: with less than a message a second, the next turn may be hours away.
_PIECE_S = 1.0

# Takes messages, and returns the topic to which each of them goes: its output topic, or the dead-letter topic.
GoesTo = Callable[[pa.Table], pa.ChunkedArray]
# A limited output topic, or None for all together.
Rated = str | None


class RateLimiter:
    """Limits delivery to `per_second` messages a second, on average over committed messages; 0 means no limit.

    An output topic in `by_topic` has a limit of its own as well. Unused capacity is not saved up: after a pause the
    rate is the same.
    """

    def __init__(self, per_second: float, by_topic: Mapping[str, float]) -> None:
        self._per_second = per_second
        self.limit_topics(by_topic)
        # When the next message may go.
        self._free_at_s: dict[Rated, float] = {}

    def limit_topics(self, by_topic: Mapping[str, float]) -> None:
        """Limit the output topics of `by_topic` from now on. Past usage still counts by the former rates."""
        rates: list[tuple[Rated, float]] = [(None, self._per_second), *by_topic.items()]
        self._rates = {name: rate for name, rate in rates if rate}

    @property
    def most_at_once(self) -> Mapping[Rated, int]:
        """How many messages may go together by each limit, so that a subscriber has no more than a second's worth."""
        return {name: max(1, int(per_second)) for name, per_second in self._rates.items()}

    def charges(self, messages: pa.Table, goes_to: GoesTo) -> dict[Rated, int]:
        """Return how many of `messages` count for each limit, without limits that no message counts for."""
        if not self._rates:
            return {}
        topics = goes_to(messages)
        counts = {name: int(counts_for(messages, topics, name).sum()) for name in self._rates}
        return {name: count for name, count in counts.items() if count}

    def wait(self, names: Iterable[Rated], stopping: Event, on_wait: Callable[[], None] = lambda: None) -> bool:
        """Wait for the turn of messages that count for `names`; return False if `stopping` is set before it comes.

        `on_wait` is called from time to time meanwhile.
        """
        free_at_s = max((self._free_at_s.get(name, 0.0) for name in names), default=0.0)
        while (wait_s := free_at_s - time.monotonic()) > 0:
            on_wait()
            if stopping.wait(min(wait_s, _PIECE_S)):
                return False
        return True

    def spend(self, charges: Mapping[Rated, int], begun_s: float) -> None:
        """Count messages that are written, since `begun_s` by the monotonic clock."""
        for name, count in charges.items():
            self._free_at_s[name] = max(self._free_at_s.get(name, 0.0), begun_s) + count / self._rates[name]


def counts_for(messages: pa.Table, topics: pa.ChunkedArray, name: Rated) -> npt.NDArray[np.bool_]:
    """Return which of `messages`, which go to `topics`, count for the limit of `name`.

    A message that became a dead letter on the way reaches no subscriber. It counts only for the dead-letter topic.
    """
    return np.asarray(pc.equal(topics, messages.column("output_topic") if name is None else name), dtype=bool)


def shares(rates: Mapping[str, int], partitions: Mapping[str, int], shard: int, shards: int) -> dict[str, float]:
    """Return what one shard of `shards` may release of each topic's rate, in messages/s.

    A shard's share is its share of the topic's partitions. A topic is left out if the shard delivers to none of its
    partitions. If a topic does not exist, all shards have equal shares, since it may be created at any time.
    """
    own = {
        topic: sum(shard_of(topic, partition, shards) == shard for partition in range(partitions[topic]))
        for topic in rates.keys() & partitions.keys()
    }
    missing = {topic: rate / shards for topic, rate in rates.items() if topic not in partitions}
    return missing | {topic: rates[topic] * count / partitions[topic] for topic, count in own.items() if count}
