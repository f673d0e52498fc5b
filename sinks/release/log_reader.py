"""Reads the chunks of a shard's two logs: first up to their ends, then new ones (`log_consumers`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conf.errors import BrokerUnreachable, ReadyLogLost
from conf.kafka.headers import read_headers
from conf.kafka.rights import right_named
from conf.settings import Settings
from sinks.internal_topics.position import Log, LogPosition, Place, Position, topics_of
from sinks.ready_log.chunk import ChunkSummary, Headers, is_chunk, messages_of, summary_of
from sinks.release.log_consumers import LOST_REMEDY, TIMEOUT_S, LogConsumers
from sinks.topics.topic_ids import topic_id

log = logging.getLogger(__name__)

_NO_POSITION_REMEDY = (
    "The position topic was lost, or staged messages. `delayline repair --ready-log` sets a position, after which some "
    "messages may come a second time"
)


class LogReader:
    """Reads `shard` from `position` on, or from the beginning without one. A context manager.

    `position` is the one to go on from. If `damaged` is set to a dictionary, it gets the chunks that cannot be read,
    which are not yielded then.
    """

    def __init__(self, settings: Settings, options: Mapping[str, str], shard: int, position: Position | None) -> None:
        """Open the consumers. Raises ReadyLogLost, TopicMissing, KafkaException, BrokerUnreachable."""
        self._topics, self._shard = topics_of(settings), shard
        found = {log: self._id_of(options, log) for log in Log}
        self._has_position = position is not None
        self.position = position or Position(LogPosition(found[Log.READY]), LogPosition(found[Log.NEAR]))
        self.damaged: dict[Place, ReadyLogLost] | None = None
        self._consumers = LogConsumers(settings, options, shard)
        try:
            self._check(found)
            self._consumers.begin({log: self.position.of(log).lowest for log in Log})
        except BaseException:
            self.close()
            raise

    @property
    def at_end(self) -> bool:
        """Whether all that was there lately has been read."""
        return self._consumers.at_end

    @property
    def ends(self) -> Mapping[Log, int]:
        """The offsets below which all of each log is read, records without messages included."""
        return self._consumers.ends

    @property
    def read_ms(self) -> int:
        """When the last call of `read` had an answer, epoch ms."""
        return self._consumers.fetched_ms

    def read(self, timeout_s: float) -> Iterator[tuple[Place, ChunkSummary, bytes]]:
        """Yield place, summary and payload of the chunks that have come; wait for the first one up to `timeout_s`.

        Ignores records of other writers, with a warning. Raises ReadyLogLost, RightMissing, FormatMismatch;
        KafkaException after all that has come, so that the caller may go on later.
        """
        foreign: list[Place] = []
        try:
            for place, message in self._consumers.fetch(timeout_s):
                headers, payload = read_headers(message), message.value() or b""
                if not is_chunk(headers, payload):
                    foreign.append(place)
                elif not self.position.skips(place):
                    yield from self._chunk(place, headers, payload)
        finally:
            if foreign:
                log.warning(
                    "ignoring %d records that Delayline did not write, beginning with %s. They hold no messages. "
                    "Only Delayline may write to this topic",
                    len(foreign), self._consumers.name(foreign[0]),
                )  # fmt: skip

    def _chunk(self, place: Place, headers: Headers, payload: bytes) -> Iterator[tuple[Place, ChunkSummary, bytes]]:
        try:
            summary = summary_of(headers, self._consumers.name(place))
            if self.damaged is not None:
                messages_of(payload, self._consumers.name(place))
        except ReadyLogLost as problem:
            if self.damaged is None:
                raise
            self.damaged[place] = problem
        else:
            yield place, summary, payload

    def read_to_end(self) -> Iterator[tuple[Place, ChunkSummary, bytes]]:
        """Yield the chunks of `read`, until all that was there lately has been read.

        Raises the errors of `read`, and BrokerUnreachable if nothing more can be read for 30 s: a partition without a
        leader gets one again in time.
        """
        ends, heard_s = dict(self.ends), time.monotonic()
        while not self.at_end:
            yield from self.read(1.0)
            if self.ends != ends:
                ends, heard_s = dict(self.ends), time.monotonic()
            elif time.monotonic() > heard_s + TIMEOUT_S:
                behind = " and ".join(map(self._consumers.name, self._consumers.behind))
                raise BrokerUnreachable(f"could not read on from {behind} within {TIMEOUT_S:g} s")

    def read_again(self, places: Sequence[Place]) -> Iterator[tuple[Place, bytes]]:
        """Do what `LogConsumers.read_again` does."""
        return self._consumers.read_again(places)

    def close(self) -> None:
        """Close the consumers."""
        self._consumers.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _id_of(self, options: Mapping[str, str], log: Log) -> str:
        with right_named("Read", f"topic {self._topics[log]}"):
            return topic_id(options, self._topics[log])

    def _check(self, found: Mapping[Log, str]) -> None:
        """Raise ReadyLogLost if a log is not the log of the position, or lacks records."""
        wrong = [problem for log in Log if (problem := self._problem_of(log, found[log]))]
        if wrong:
            raise ReadyLogLost(f"{'; '.join(wrong)}. {LOST_REMEDY if self._has_position else _NO_POSITION_REMEDY}")

    def _problem_of(self, log: Log, found: str) -> str:
        """Return the problem with `log`, or "" if there is no problem. Its topic has the id `found`."""
        own, place = self.position.of(log), f"{self._topics[log]}/{self._shard}"
        # This comes first: another topic may also lack the partition, but that is not the main problem.
        if own.topic_id != found:
            return f"{place} is not the topic ({found}) that was released before"
        low, high = self._consumers.bounds(log)
        if low > own.lowest and not self._has_position:
            return f"{place} begins at offset {low}, and the shard has no position"
        if low > own.lowest:
            return f"{place} begins at offset {low}, but is released only up to {own.lowest}"
        if high < own.taken_in:
            return f"{place} ends at offset {high}, but was already read up to {own.taken_in}"
        return ""
