"""How a transaction that a topic refused is written next, so that the message to blame is found."""

from __future__ import annotations

import threading

from conf.errors import DeliveryFailed
from conf.rejected import MessageTooLarge, RecordRefused
from sinks.release.fault_search import FaultSearch, GroupRefused
from sinks.release.known_topics import CLOCKS_APART_MS, Topics
from sinks.release.planned import Planned
from sinks.release.rewrites import MOST_REWRITES

# How long to wait before a transaction is written again that was refused for no known reason.
_AGAIN_S = 1.0


class Narrowing:
    """Decides about the refusals of one shard with the given `topics`. Its waits end when `stopping` is set."""

    def __init__(self, topics: Topics, dead_letter: str, stopping: threading.Event) -> None:
        """`dead_letter` is the dead-letter topic."""
        self._topics = topics
        self._dead_letter = dead_letter
        self._stopping = stopping

    def next(
        self, refusal: GroupRefused, planned: Planned, begun_ms: int, tries: int, limits_changed: bool, is_first: bool
    ) -> FaultSearch | None:
        """Return how to write `planned`, which was refused, and remember the messages to blame.

        A single remaining message is to blame, and so are the messages that the client names. All messages for the
        topic are to blame if it refuses so often that others would wait for too long, or after too many `tries`.
        Nothing is searched if the refusal may have another cause: limits that were changed in the meantime; a timestamp
        ahead of the broker's clock when it was written, at `begun_ms`; this host's time as the timestamp; or a first
        error that says nothing about the record. `is_first` says whether it was written without a search.

        Raises DeliveryFailed if the topic refuses a transaction that is already without its records.
        """
        topics, topic, error = self._topics, refusal.topic, refusal.error
        # The dead-letter topic has more tries: a record that it refuses loses its value, so each one is searched for.
        most = MOST_REWRITES * (planned.messages.num_rows if topic == self._dead_letter else 1)
        if tries > most:
            raise DeliveryFailed(f"{topic} refused a transaction {tries} times. The last error: {error}")
        if tries == most:
            topics.refuse_all(topic, planned.messages, error)
            return None
        if limits_changed or not refusal.ids:
            return None
        # The batch may be too large, and each of its records small enough.
        is_shared = isinstance(error, MessageTooLarge) and len(refusal.ids) > 1
        if is_shared and topics.bound_batches(topic, refusal.nbytes):
            return None
        is_often = topics.refuses_often(topic)
        if self._has_other_cause(refusal, planned, begun_ms, tries, is_often):
            return None
        if refusal.is_certain:
            # Occurrences of one message have one id.
            for identity in {*refusal.ids}:
                topics.refuse(topic, identity, error)
        if is_often:
            topics.refuse_all(topic, planned.messages, error)
            return None
        return None if refusal.is_certain else FaultSearch(refusal.suspects, is_first)

    def _has_other_cause(
        self, refusal: GroupRefused, planned: Planned, begun_ms: int, tries: int, is_often: bool
    ) -> bool:
        """Return whether the time of writing may have caused the refusal, or no record at all."""
        topic, error = refusal.topic, refusal.error
        cause = error.cause if isinstance(error, RecordRefused) else None
        was_early = begun_ms < planned.last_due_ms + CLOCKS_APART_MS
        # If several records of a batch have a wrong timestamp, the client says only that they are invalid.
        if cause in ("timestamp", "record") and was_early and not is_often and self._topics.write_later(topic):
            return True
        if cause == "timestamp" and self._topics.stamp_by_due(topic):
            return True
        if cause == "other" and tries == 1 and not is_often:
            self._stopping.wait(_AGAIN_S)
            return True
        return False
