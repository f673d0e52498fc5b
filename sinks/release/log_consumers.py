"""The two consumers of a shard's logs, which return the new records of both and know when these are all.

One waits at the broker for new records. The other reads the existing records and does not wait for more, so that it
finds the ends of the logs at once. More records may have come behind these ends while earlier ones were taken in.
Releasing without these records would break the order. So it reads on until it has everything that was there a moment
ago.

It does the same after a stall: the caller was busy for a while, or the process was paused, and records have come since
then that are due before others that it knows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable, ReadyLogLost
from conf.kafka.client_log import client_log
from conf.kafka.read_up_to import raise_unless_transient
from conf.kafka.rights import right_named
from conf.settings import Settings
from sinks.internal_topics.newest_record import bounds
from sinks.internal_topics.position import Log, Place, topics_of
from sinks.release.wall_clock import now_ms

log = logging.getLogger(__name__)

# How many records are taken at a time, and how often in one call.
_MOST_AT_ONCE, _MOST_TIMES = 100, 10
TIMEOUT_S = 30.0
# The most that a reader may fetch ahead. A larger record is fetched alone.
_PREFETCH_KBYTES = 4096
# How long requested ends of the logs count as present, and how long the consumer for new records may take for its first
# answer. No message is due less than 0.3 s after it has come, except for messages that cannot be put in order anyway.
_PRESENT_S, _FIRST_ANSWER_S = 0.1, 0.15
# If the caller comes back later than that, new records may be due already, and are read up to the ends.
_STALL_MS = 150
# After this many requests for the ends, a busy host gets more time for each request: it must not repeat them forever.
_MOST_QUESTIONS = 20
# A larger gap is not read through, but sought across.
_GAP = 50
LOST_REMEDY = (
    "Staged messages that are not released yet are lost there, unless you restore the brokers' own data. A topic that "
    "is filled from a copy is another topic. `delayline repair --ready-log` skips the missing records, and prints how "
    "many are lost"
)


class LogConsumers:
    """Fetches the records of both logs of `shard`, from the offsets given to `begin`.

    `at_end` says whether all that was there lately has been fetched. `ends` has the offsets below which all of each log
    is fetched, records without messages included. `fetched_ms` says when the last fetch was answered, epoch ms: by the
    clock by which messages are due. Its state is how far each consumer has come, and the change between them.
    """

    def __init__(self, settings: Settings, options: Mapping[str, str], shard: int) -> None:
        """Open both consumers. `options` are librdkafka's."""
        self._topics, self._shard = topics_of(settings), shard
        self._logs = {topic: log for log, topic in self._topics.items()}
        self.at_end = False
        self.ends = dict.fromkeys(Log, 0)
        self.fetched_ms = now_ms()
        # The ends of the logs as last requested, when that was (by the monotonic clock), and how often it was done.
        self._sought = dict(self.ends)
        self._sought_s, self._questions = -math.inf, 0
        # Until when to wait for the first answer of the consumer for new records; None while it is not in use.
        self._answer_by_s: float | None = None
        # Whether that consumer was ever in use, and how often a stall has ended that since the ends were reached.
        self._follows, self._stalls = False, 0
        # Up to where the consumer for new records has come, and the end of the last record that either has returned.
        self._came, self._found = dict(self.ends), dict(self.ends)
        common = consumer_options(settings, options)
        self._coming = Consumer(common | {"fetch.wait.max.ms": 500}, logger=client_log(log))
        self._there = Consumer(common | {"fetch.wait.max.ms": 10}, logger=client_log(log))

    def bounds(self, log: Log) -> tuple[int, int]:
        """Return the first offset of a log, and its end. Raises KafkaException, BrokerUnreachable."""
        return bounds(self._there, self._partition(log), time.monotonic() + TIMEOUT_S)

    def begin(self, offsets: Mapping[Log, int]) -> None:
        """Fetch each log from its offset on."""
        self.ends, self._found = dict(offsets), dict(offsets)
        self._there.assign([self._partition(log, offset) for log, offset in offsets.items()])

    @property
    def behind(self) -> list[Place]:
        """The end of each log that is not fetched up to its known end: a busy log never reports its end itself."""
        return [Place(log, end) for log, end in self.ends.items() if end < self._sought[log]]

    def fetch(self, timeout_s: float) -> Iterator[tuple[Place, Message]]:
        """Yield the records that have come, each once, in order for each log; wait for the first up to `timeout_s`.

        Raises ReadyLogLost, RightMissing; KafkaException after all that has come, so that the caller may go on later.
        """
        if self._answer_by_s is None:
            self._follow_at_ends()
        follows = self._answer_by_s is not None
        consumer = self._coming if follows else self._there
        first = consumer.poll(timeout_s)
        before_ms, self.fetched_ms = self.fetched_ms, now_ms()
        # A busy host gets more time after each stall: it must not read up to the ends forever.
        if follows and self.fetched_ms > before_ms + timeout_s * 1000 + _STALL_MS * (1 + self._stalls):
            self._read_up_to_ends()
        messages, is_whole = _fetched(consumer, first)
        # This one must not fall behind meanwhile: what is released is deleted.
        also = _fetched(self._coming)[0] if self._follows and not follows else []
        failure: KafkaException | None = None
        for message, has_come in chain(((each, follows) for each in messages), ((each, True) for each in also)):
            if _is_eof(message):
                self._reach(self._log_of(message), message.offset() or 0, has_come)
                continue
            try:
                if not self._is_record(message):
                    continue
            except KafkaException as problem:
                failure = failure or problem
                continue
            place = self._place_of(message)
            is_new = place.offset >= self.ends[place.log]
            self._reach(place.log, place.offset + 1, has_come)
            self._found[place.log] = max(self._found[place.log], place.offset + 1)
            if is_new:
                yield place, message
        if self._answer_by_s is not None and (first is not None or time.monotonic() > self._answer_by_s):
            self._answer_by_s = -math.inf
            self.at_end = is_whole and all(self._came[log] >= self._found[log] for log in Log)
            self._stalls = 0 if self.at_end else self._stalls
        if failure is not None:
            raise failure

    def read_again(self, places: Sequence[Place]) -> Iterator[tuple[Place, bytes]]:
        """Yield the payloads of the chunks at `places`, ascending.

        Raises ReadyLogLost, RightMissing, BrokerUnreachable, KafkaException.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        for _, own in groupby(places, key=lambda place: place.log):
            wanted = list(own)
            at: Place | None = None
            while wanted:
                if at is None or wanted[0].offset - at.offset > _GAP:
                    self._there.assign([self._partition(*wanted[0])])
                message = self._there.poll(1.0)
                if message is None and time.monotonic() < deadline_s:
                    continue
                if message is None or _is_eof(message):
                    raise BrokerUnreachable(f"cannot read {self.name(wanted[0])} again")
                if not self._is_record(message):
                    continue
                at = self._place_of(message)
                if at > wanted[0]:
                    raise ReadyLogLost(f"{self.name(wanted[0])} is gone. {LOST_REMEDY}")
                if at == wanted[0]:
                    wanted.pop(0)
                    yield at, message.value() or b""
        self._there.unassign()

    def name(self, place: Place) -> str:
        """Return how an error or a log line names a record."""
        return f"{self._topics[place.log]}/{self._shard} at offset {place.offset}"

    def close(self) -> None:
        """Close the consumers."""
        self._coming.close()
        self._there.close()

    def _follow_at_ends(self) -> None:
        """Go on with new records at the ends of the logs, if these are the present ends.

        Raises RightMissing, KafkaException.
        """
        if self.behind:
            return
        if time.monotonic() > self._sought_s + _PRESENT_S * max(1, self._questions - _MOST_QUESTIONS):
            asked_s = time.monotonic()
            # By the other consumer, which is connected then. Once that waits for records, a question waits behind it.
            asker = self._there if self._follows else self._coming
            for log in Log:
                with right_named("Read", f"topic {self._topics[log]}"):
                    self._sought[log] = bounds(asker, self._partition(log), asked_s + TIMEOUT_S)[1]
            self._sought_s = time.monotonic()
            self._questions += 1
            if self.behind:
                return
        # Records that this consumer has fetched since then are read by the other one.
        self._there.unassign()
        self._answer_by_s, self.fetched_ms = time.monotonic(), now_ms()
        if not self._follows:
            self._coming.assign([self._partition(log, end) for log, end in self.ends.items()])
            self._came = dict(self.ends)
            self._answer_by_s += _FIRST_ANSWER_S
            self._follows = True

    def _read_up_to_ends(self) -> None:
        """Read up to the present ends of the logs, with both consumers."""
        self.at_end, self._answer_by_s = False, None
        self._stalls += 1
        self._sought_s, self._questions = -math.inf, 0
        self._there.assign([self._partition(log, end) for log, end in self.ends.items()])

    def _reach(self, log: Log, end: int, has_come: bool) -> None:
        self.ends[log] = max(self.ends[log], end)
        if has_come:
            self._came[log] = max(self._came[log], end)

    def _is_record(self, message: Message) -> bool:
        """Return False for an error that passes. Raises ReadyLogLost, RightMissing, KafkaException for others."""
        error = message.error()
        if error is None:
            return True
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise ReadyLogLost(f"{message.topic()}/{self._shard}: {error.str()}. {LOST_REMEDY}")
        raise_unless_transient(message, error)
        return False

    def _partition(self, log: Log, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topics[log], self._shard, offset)

    def _log_of(self, message: Message) -> Log:
        return self._logs[message.topic() or ""]

    def _place_of(self, message: Message) -> Place:
        offset = message.offset()
        assert offset is not None
        return Place(self._log_of(message), offset)


def consumer_options(settings: Settings, options: Mapping[str, str]) -> dict[str, str | int | bool]:
    """Return the options of both consumers, from the `options` of `[kafka]`."""
    return {
        **options,
        "group.id": f"{settings.ready_topic}-reader",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        # With a rack, a follower may answer, which has new records later.
        "client.rack": "",
        "fetch.min.bytes": 1,
        "fetch.error.backoff.ms": 20,
        "queued.max.messages.kbytes": _PREFETCH_KBYTES,
        # How long the client pauses when it has that much: a second by default.
        "fetch.queue.backoff.ms": 5,
        "fetch.message.max.bytes": 1024 * 1024,
        # The client's most: it must be above fetch.max.bytes, and above message.max.bytes, of [kafka].
        "receive.message.max.bytes": 2**31 - 1,
        "log_level": 2,
    }


def _fetched(consumer: Consumer, first: Message | None = None) -> tuple[list[Message], bool]:
    """Return `first` and what `consumer` has fetched, and whether that is all: it may fetch faster than we read."""
    messages = [] if first is None else [first]
    for _ in range(_MOST_TIMES):
        more = consumer.consume(_MOST_AT_ONCE, 0)
        messages += more
        if len(more) < _MOST_AT_ONCE:
            return messages, True
    return messages, False


def _is_eof(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF
