"""The messages that a release process has released since it started: counts by output topic, and their lateness."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.answers import count_results
from state.kinds import ANSWER, is_delivered, kinds_of
from state.message_ids import ID

# The upper bounds of the histogram of lateness, ms: from a transaction on an idle broker to an outage of an hour.
BOUNDS_MS = (1, 2, 5, 10, 20, 30, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 600_000, 3_600_000)
_BOUNDS_MS = np.array(BOUNDS_MS)
# Output topics beyond this number count as `OTHER_TOPICS`: a pattern may allow any number of topics.
MOST_TOPICS = 200
OTHER_TOPICS = "(other topics)"
# The columns needed for counting: filtering copies rows, and keys and values may be large.
_COUNTED_BY = ["deliver_at_ms", *ID, "output_topic"]


@dataclass
class TopicCounts:
    """The messages that went to one output topic.

    `by_bound` has how many were late by at most each of `BOUNDS_MS`, and not by at most the one before, and then those
    that were later. `late_ms` is the sum of their lateness, `early` how many came before they were due.
    """

    by_bound: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BOUNDS_MS) + 1, np.int64))
    late_ms: int = 0
    early: int = 0

    @property
    def messages(self) -> int:
        """How many messages there were."""
        return int(self.by_bound.sum())


class ReleaseCounts:
    """Counts the messages released by the shards of a process. Counts only grow, whichever shards it has."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._topics: dict[str, TopicCounts] = {}
        self._dead_letters: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()

    def add(self, messages: pa.Table, replaced: Mapping[int, str], released_ms: int) -> None:
        """Add the messages of a transaction. Its commit was acknowledged at `released_ms` (epoch ms).

        `replaced` has the reasons of the messages that became dead letters while they were written, by row.
        """
        due = self._due(messages, replaced)
        late_ms = released_ms - due.column("deliver_at_ms").to_numpy()
        topics = due.column("output_topic").combine_chunks().dictionary_encode()
        which = np.asarray(topics.indices)
        with self._lock:
            for number, topic in enumerate(topics.dictionary.to_pylist()):
                own = late_ms[which == number] if len(topics.dictionary) > 1 else late_ms
                counts = self._of(topic)
                # The least bound that is not exceeded.
                counts.by_bound += np.bincount(_BOUNDS_MS.searchsorted(own), minlength=len(BOUNDS_MS) + 1)
                counts.late_ms += int(np.maximum(own, 0).sum())
                counts.early += int((own < 0).sum())

    def _due(self, messages: pa.Table, replaced: Mapping[int, str]) -> pa.Table:
        """Return the delivered ones of `messages`, and count the others: answers and dead letters."""
        is_due = is_delivered(messages)
        # This holds nearly always, and then no copy is needed.
        if not replaced and is_due.all():
            return messages
        results = count_results(messages.select(["value"]).filter(pa.array(kinds_of(messages) == ANSWER)))
        codes = messages.column("error_code").drop_null().to_pylist()
        is_due[[*replaced]] = False
        due = messages.select(_COUNTED_BY).filter(pa.array(is_due))
        with self._lock:
            self._answers.update(results)
            self._dead_letters.update(codes)
            self._dead_letters.update(replaced.values())
        return due

    def topics(self) -> dict[str, TopicCounts]:
        """Return the counts up to now, by output topic."""
        with self._lock:
            return {
                topic: TopicCounts(counts.by_bound.copy(), counts.late_ms, counts.early)
                for topic, counts in self._topics.items()
            }

    def dead_letters(self) -> dict[str, int]:
        """Return how many dead letters were written up to now, by reason."""
        with self._lock:
            return dict(self._dead_letters)

    def answers(self) -> dict[str, int]:
        """Return how many answers to cancels went to the results topic up to now, by result."""
        with self._lock:
            return dict(self._answers)

    def _of(self, topic: str) -> TopicCounts:
        if topic not in self._topics and len(self._topics) >= MOST_TOPICS:
            topic = OTHER_TOPICS
        return self._topics.setdefault(topic, TopicCounts())
