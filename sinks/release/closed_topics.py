"""Output topics that no longer take records: messages for them become dead letters, until they take records again.

A publisher chooses the output topic of a message (`deliver-to`). The topic's owner may delete it or bar it while the
message waits. That must not stop the messages of others. So a topic is *closed* here if it is gone, may not be written
to, or has fewer partitions than messages were accepted for. The topics of the settings are never closed: if one of them
is missing, an operator is needed.

A topic is closed only if a broker says so twice, some seconds apart, and knows another topic of the service. A topic
that has no leader, or that not all brokers have heard of yet, does not count as closed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from conf.rejected import TopicClosed
from conf.settings import Settings
from sinks.release.partition_needs import Needs
from sinks.release.waits import Waits
from sinks.topics.limits import TopicAccess, topic_access
from sinks.topics.roles import required_topics

log = logging.getLogger(__name__)

_LOG_EVERY_S = 60.0
# Above the number of every partition.
_EVERY = 1 << 31


@dataclass(frozen=True)
class Closed:
    """A topic that takes records only in its first `partitions`. Messages were accepted for `needed` partitions.

    `looked_s` is when a broker said so last, by the monotonic clock.
    """

    error: TopicClosed
    partitions: int
    needed: int
    looked_s: float = -math.inf


class ClosedTopics:
    """The closed topics that a release process knows of. All of its shards share them."""

    def __init__(self, settings: Settings, options: Mapping[str, str], waits: Waits) -> None:
        """Begin without closed topics. `options` are librdkafka's."""
        self._options, self._waits = options, waits
        self._required = required_topics(settings)
        # It must be there for the release of any shard.
        self._known_topic = settings.position_topic
        # Replaced as a whole, so that it can be read at any time.
        self._closed: Mapping[str, Closed] = {}
        self._changing, self._looking = threading.Lock(), threading.Lock()
        # By topic and the monotonic clock.
        self._logged_s: dict[str, float] = {}
        # How often a topic was found to take records again.
        self.reopened = 0

    @property
    def now(self) -> Mapping[str, Closed]:
        """The topics that are closed."""
        return self._closed

    def may_close(self, topic: str) -> bool:
        """Return whether the service goes on without `topic`: a publisher has named it."""
        return topic not in self._required

    def confirm(self, needs: Needs, stopping: threading.Event) -> Collection[str]:
        """Close the topics in `needs` that do not take records, and return the newly closed ones.

        This takes some seconds, unless `stopping` is set. Raises KafkaException if no broker answers.
        """
        before = self._closed
        needs = {
            topic: max(needed, before[topic].needed if topic in before else 0)
            for topic, needed in needs.items()
            if self.may_close(topic)
        }
        first = self._look(needs)
        if not first or stopping.wait(self._waits.confirm):
            return ()
        second = self._look({topic: needs[topic] for topic in first})
        self._change({topic: needs[topic] for topic in first}, second)
        return [
            topic
            for topic, closed in second.items()
            if topic not in before or closed.partitions != before[topic].partitions
        ]

    def look_again(self, topics: Collection[str]) -> None:
        """Check whether closed topics among `topics` take records again, if the last check was some seconds ago.

        Raises KafkaException if no broker answers.
        """
        if not self._closed.keys() & topics:
            return
        # One of several shards checks, and the others use its findings.
        with self._looking:
            stale_s = time.monotonic() - self._waits.look_again
            closed = {topic: each for topic, each in self._closed.items() if topic in topics}
            needs = {topic: each.needed for topic, each in closed.items() if each.looked_s < stale_s}
            if needs:
                self._change(needs, self._look(needs))

    def _look(self, needs: Needs) -> dict[str, Closed]:
        """Return the topics in `needs` that a broker reports as closed now."""
        if not needs:
            return {}
        found = topic_access(self._options, {*needs, self._known_topic})
        known = found.get(self._known_topic)
        if known is None or known.kind != "open":
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, self._known_topic, retriable=True))
        return {
            topic: Closed(
                TopicClosed(_cause(topic, found[topic])), found[topic].open_partitions, needed, time.monotonic()
            )
            for topic, needed in needs.items()
            if topic in found and found[topic].open_partitions < needed
        }

    def _change(self, looked_at: Needs, found: dict[str, Closed]) -> None:
        """Store `found` as the closed ones of the topics that were checked, and log it once a minute."""
        with self._changing:
            now_s = time.monotonic()
            reopened = self._closed.keys() & looked_at.keys() - found.keys()
            self._closed = {topic: closed for topic, closed in self._closed.items() if topic not in looked_at} | found
            self.reopened += len(reopened)
            logged = [topic for topic in found if self._logged_s.get(topic, -_LOG_EVERY_S) <= now_s - _LOG_EVERY_S]
            self._logged_s |= dict.fromkeys(logged, now_s)
        for topic in logged:
            missing = f", partitions from {found[topic].partitions} on," if found[topic].partitions else ""
            log.warning("messages for %s%s become dead letters: %s", topic, missing, found[topic].error)
        for topic in reopened:
            log.warning("output topic %s accepts records again", topic)


def refused_by(messages: pa.Table | pa.RecordBatch, closed: Mapping[str, Closed]) -> npt.NDArray[np.bool_]:
    """Return which of `messages` are for a topic that is `closed`, or for a partition that it lacks."""
    if not closed or not messages.num_rows:
        return np.zeros(messages.num_rows, dtype=bool)
    # Goes through the topics of the messages, since there may be many closed topics: all that were ever deleted with
    # messages on their way.
    encoded = messages.column("output_topic").dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    topics = (closed.get(topic) for topic in encoded.dictionary.to_pylist())
    first_refused = np.array([_EVERY if each is None else each.partitions for each in topics], dtype=np.int64)
    refused: npt.NDArray[np.bool_] = messages.column("output_partition").to_numpy() >= first_refused[encoded.indices]
    return refused


def _cause(topic: str, found: TopicAccess) -> str:
    cause = {
        "gone": "was deleted",
        "hidden": "may no longer be described by the login of [kafka], so the job does not write to it",
        "barred": "may not be written to: the login of [kafka] lacks the right Write on it",
        "open": f"has {found.partitions} partitions, fewer than when the message was accepted",
    }[found.kind]
    return f"output topic {topic} {cause}"
