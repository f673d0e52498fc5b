"""The messages that release processes have cancelled, as their answers say: read back from the results topic."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.headers import read_headers
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.setting_types import DAY, HOUR, LONGEST
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.newest_record import NO_SUCH_PARTITION
from sinks.topics.topic_ids import topic_id
from sinks.topics.topics import input_bounds, input_offsets_at, partition_counts
from state.cancel import MessageId
from state.message import ID_HEADER
from state.message_ids import Ids, ids_of, parse_id
from state.reasons import Reason

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_AT_ONCE = 10_000
# How long the transactions are waited for that are open when the topic is read. They last for milliseconds, unless the
# process hangs or is dead; then its successor, or the broker, ends them.
_OPEN_S, _PAUSE_S = 0.2, 0.01
# In each of their answers about such a message, and in hardly any other record.
_RECALLED = json.dumps(Reason.RECALLED.code).encode()
# How far cutoffs may be ahead of the time (`clock.horizon`).
_AHEAD_MS = HOUR
# The commit metadata, for a later process: `cancels.known_for` in ms, and the id of the results topic.
_NOTE = re.compile(r"known_for=([0-9]{1,13}) topic=([A-Za-z0-9+/_-]{1,40})")
_LEAST_KNOWN_FOR, _MOST_KNOWN_FOR = DAY, LONGEST
# How old the last cutoff of earlier processes is if the broker may have forgotten the offsets of the group. They stored
# them each hour, and brokers keep them for 7 days by default.
_FORGOTTEN_MS = DAY


class Note(NamedTuple):
    """What an earlier process has stored beside an offset: its `cancels.known_for`, and the id of the topic."""

    known_for_ms: int
    topic_id: str


class RecalledMessages:
    """Reads the results topic on from where it was read before, by this job or an earlier one. Not thread-safe.

    What it returns, the caller stores in the table. How far the topic was read for that is stored with the broker
    afterwards, by the first call that comes when a batch has completed.

    Answers may be deleted before they are read, as with the topic, and nobody will ever know what they said. So the
    same group has offsets of the input partitions, below which messages may be cancelled though nobody knows that.
    """

    def __init__(self, settings: Settings, ran_until_ms: int = 0) -> None:
        """Know nothing yet: nothing is read before somebody asks for a message that is handed over.

        `ran_until_ms` is the cutoff (epoch ms) up to which earlier processes have handed messages over, 0 if none has.
        """
        self._settings = settings
        self._ran_until_ms = ran_until_ms
        self._group = f"{settings.application_id}-recalled"
        self._consumer: Consumer | None = None
        # Kafka's id of the topic: one that is made anew has another.
        self._topic_id = ""
        # How the last commit of that consumer ended, an error or none; an empty list if it has not.
        self._ended: list[KafkaError | None] = []
        # How far it was read, how far what was found there is returned, and how far that is stored for certain.
        self._next: dict[int, int] = {}
        self._returned: dict[int, int] = {}
        self._stored: dict[int, int] = {}
        # What was found and is not returned.
        self._found: list[MessageId] = []
        self._unsure_below: dict[tuple[str, int], int] = {}
        self._has_noted = False
        # Knows the ends of the topic with what is not committed. It reads nothing.
        self._reader_of_all: Consumer | None = None
        self._knows_all = True

    @property
    def knows_all(self) -> bool:
        """Whether the last `read` has read all that was answered before: nothing is read behind an open transaction."""
        return self._knows_all

    @property
    def unsure_below(self) -> Mapping[tuple[str, int], int]:
        """Up to which offsets of the input partitions messages may be cancelled of which nobody knows that.

        The answers about them were deleted unread, by this process or an earlier one. Or an earlier one has forgotten
        them, since its `cancels.known_for` was shorter.
        """
        return self._unsure_below

    @property
    def has_noted(self) -> bool:
        """Whether a later process will know how long this one knows cancelled messages. Any thread may ask."""
        return self._has_noted

    def read(self) -> Ids:
        """Return the messages that were answered to be cancelled, up to now, and that no call has returned yet.

        Waits through an outage; raises BrokerUnreachable after `kafka.outage_limit`, RightMissing.
        """
        retry = BrokerRetry("the results topic", self._settings.kafka.outage_limit)
        while True:
            try:
                self._read_on(_OPEN_S)
                return self.read_ahead()
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(self._cause_of(problem))

    def read_ahead(self) -> Ids:
        """Return those that `look_ahead` has found, and that no call has returned yet. Asks no broker."""
        found, self._found, self._returned = self._found, [], self._next
        return ids_of(found)

    def look_ahead(self) -> None:
        """Read the topic up to now, so that the next call has less to read. In an outage, that one will wait.

        Raises RightMissing.
        """
        # Brokers forget what is not stored again for days, as while nobody cancels anything.
        self._stored = {}
        try:
            self._read_on(wait_s=0)
        except (KafkaException, BrokerUnreachable) as problem:
            log.warning("the results topic could not be read ahead: %s", self._cause_of(problem))

    def begin_again(self) -> None:
        """Let the next call return again what the last one has returned, which is not stored."""
        self._next, self._found = {}, []

    def _cause_of(self, problem: KafkaException | BrokerUnreachable) -> KafkaException | BrokerUnreachable:
        """Return why the topic cannot be read. Raises RightMissing if waiting does not help."""
        if isinstance(problem, KafkaException) and is_refusal(problem.args[0]):
            what = f"topic {self._settings.results_topic} and group {self._group}"
            raise right_missing("Read", what) from problem
        # The topic was there when the job started.
        if isinstance(problem, KafkaException) and problem.args[0].name() in NO_SUCH_PARTITION:
            return BrokerUnreachable(f"the broker does not know its partitions: {problem}")
        return problem

    def close(self) -> None:
        """Close the consumers."""
        for consumer in (self._consumer, self._reader_of_all):
            if consumer is not None:
                consumer.close()

    def _read_on(self, wait_s: float) -> None:
        """Read on up to now, but for what lies behind transactions that are open for longer than `wait_s`."""
        consumer = self._consumer = self._consumer or self._opened("read_committed")
        topic = self._settings.results_topic
        if not self._next:
            self._next = self._returned = self._begin(consumer)
        bounds = self._bounds(consumer, wait_s)
        # One that ends before where it was read to was made anew.
        begins = {
            number: low if high < self._next[number] else max(self._next[number], low)
            for number, (low, high) in bounds.items()
        }
        if lost := {number: begin for number, begin in begins.items() if begin != self._next[number]}:
            self._note_loss()
            self._topic_id = self._topic_id_now()
            # At once: whoever comes after this process may find nothing that tells it.
            self._next, self._returned, self._stored = begins, self._returned | lost, {}
        if self._returned != self._stored:
            # The batch before is complete.
            self._store(consumer, self._returned)
        ends = {number: high for number, (_, high) in bounds.items() if high > begins[number]}
        found: list[Message] = []
        left = set(ends)
        consumer.assign(self._places({number: begins[number] for number in ends}))
        try:
            while left:
                first = consumer.poll(_TIMEOUT_S)
                if first is None:
                    raise BrokerUnreachable(f"{topic} cannot be read")
                # Not with a time: it would wait for as many messages until then.
                for message in (first, *consumer.consume(_AT_ONCE, 0)):
                    error, number, offset = message.error(), message.partition(), message.offset()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error is None and says_recalled(message.value() or b""):
                        found.append(message)
                    if number is not None and offset is not None and offset + (error is None) >= ends[number]:
                        left.discard(number)
        finally:
            consumer.unassign()
        self._next = begins | ends
        self._found += filter(None, map(self._asked_for, found))

    def _begin(self, consumer: Consumer) -> dict[int, int]:
        """Return up to which offset earlier processes have read each partition, and find out what they have noted.

        Raises KafkaException, BrokerUnreachable.
        """
        topic = self._settings.results_topic
        counts = partition_counts(self._settings, [topic, *self._settings.topics.input])
        if topic not in counts:
            raise BrokerUnreachable(f"the broker does not know {topic}")
        self._topic_id = self._topic_id_now()
        asked = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        asked.append(TopicPartition(self._settings.lease_topic, 0))
        places = consumer.committed(asked, _TIMEOUT_S)
        for place in places:
            if place.error is not None:
                raise KafkaException(place.error)
        inputs = self._settings.topics.input
        self._let_be_unsure({(place.topic, place.partition): place.offset for place in places if place.topic in inputs})
        notes = [note for note in map(note_of, places) if note is not None]
        self._let_forgotten_be_unsure(min((note.known_for_ms for note in notes), default=_MOST_KNOWN_FOR))
        if any(note.topic_id != self._topic_id for note in notes):
            self._note_loss()
            return dict.fromkeys(range(counts[topic]), 0)
        stored = {place.partition: place.offset for place in places if place.topic == topic}
        if all(offset < 0 for offset in stored.values()):
            return self._begin_unstored(consumer, counts[topic])
        return {number: max(offset, 0) for number, offset in stored.items()}

    def _topic_id_now(self) -> str:
        """Return Kafka's id of the topic. Raises KafkaException, BrokerUnreachable."""
        try:
            return topic_id(librdkafka_options(self._settings.kafka), self._settings.results_topic)
        except TopicMissing as problem:
            raise BrokerUnreachable(f"the broker does not know {self._settings.results_topic}") from problem

    def _begin_unstored(self, consumer: Consumer, partitions: int) -> dict[int, int]:
        """Return the first offset of each partition, of which none is stored.

        No process has read the topic, or it is so long ago that the broker has forgotten how far, and with that what
        was noted. Raises KafkaException, BrokerUnreachable.
        """
        bounds = {
            number: consumer.get_watermark_offsets(self._place(number), _TIMEOUT_S) for number in range(partitions)
        }
        is_forgotten = 0 < self._ran_until_ms < _now_ms() - _FORGOTTEN_MS
        # Where there was never an answer, none is lost.
        if is_forgotten and any(end for _, end in bounds.values()):
            self._note_loss()
        elif is_forgotten:
            # Whoever takes a name over cancels a message without an answer.
            self._let_forgotten_be_unsure(_LEAST_KNOWN_FOR)
        # Where it was not forgotten, answers that are deleted by now are unread.
        is_unread = self._ran_until_ms and not is_forgotten
        return {number: 0 if is_unread else first for number, (first, _) in bounds.items()}

    def _let_forgotten_be_unsure(self, known_for_ms: int) -> None:
        """Take note that earlier processes have known cancelled messages for `known_for_ms` at the least."""
        if known_for_ms < self._settings.cancels.known_for:
            # What was forgotten was older than that. Its age counted by cutoffs, which are ahead of the time.
            self._let_be_unsure(input_offsets_at(self._settings, _now_ms() + _AHEAD_MS - known_for_ms))

    def _note_loss(self) -> None:
        """Take note that answers were deleted unread. Raises BrokerUnreachable."""
        self._let_be_unsure({source: end for source, (_, end) in input_bounds(self._settings).items()})
        log.warning(
            "answers of release processes in %s were deleted before they were read, or may have been: who asks for a "
            "message that is handed over or delivered, and was published until now, may get `unknown` from here on",
            self._settings.results_topic,
        )

    def _let_be_unsure(self, below: Mapping[tuple[str, int], int]) -> None:
        more = {source: end for source, end in below.items() if end > self._unsure_below.get(source, 0)}
        self._unsure_below = self._unsure_below | more

    def _store(self, consumer: Consumer, offsets: dict[int, int]) -> None:
        """Store how far the topic was read, and what a later process must know.

        Raises KafkaException, BrokerUnreachable.
        """
        # A commit that is waited for has no time limit: librdkafka repeats it for as long as it finds no coordinator.
        self._ended.clear()
        note = f"known_for={self._settings.cancels.known_for} topic={self._topic_id}"
        ends = {(self._settings.results_topic, number): offset for number, offset in offsets.items()}
        # In one request: whoever finds how far the topic was read also finds what was lost before.
        # With the topic, Kafka would delete a note that stands there alone.
        ends |= self._unsure_below | {(self._settings.lease_topic, 0): 0}
        places = [TopicPartition(*source, offset, note) for source, offset in ends.items()]
        consumer.commit(offsets=places, asynchronous=True)
        until_s = time.monotonic() + _TIMEOUT_S
        while not self._ended and time.monotonic() < until_s:
            consumer.poll(_PAUSE_S)
        if not self._ended:
            self._consumer = None
            # It ends with the commit, or never.
            threading.Thread(target=consumer.close, name="recalled-close", daemon=True).start()
            raise BrokerUnreachable(f"the offsets of group {self._group} cannot be stored")
        if (error := self._ended[0]) is not None:
            raise KafkaException(error)
        self._stored, self._has_noted = offsets, True

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self._ended.append(error or next((place.error for place in places if place.error is not None), None))

    def _bounds(self, consumer: Consumer, wait_s: float) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of each partition, for a reader of committed records.

        The end is before a transaction that is still open. Such transactions are waited for up to `wait_s`.
        """
        until_s = time.monotonic() + wait_s
        written = self._written()
        while True:
            bounds = {number: consumer.get_watermark_offsets(self._place(number), _TIMEOUT_S) for number in self._next}
            self._knows_all = all(end >= written[number] for number, (_, end) in bounds.items())
            if self._knows_all or time.monotonic() > until_s:
                return bounds
            time.sleep(_PAUSE_S)

    def _written(self) -> dict[int, int]:
        """Return the end of each partition, with what is not committed."""
        # No admin client: that goes on with the leaders' epochs that it knows, and brokers refuse these once one of
        # them has started anew, until the client asks for metadata after many minutes.
        self._reader_of_all = self._reader_of_all or self._opened("read_uncommitted")
        return {
            number: self._reader_of_all.get_watermark_offsets(self._place(number), _TIMEOUT_S)[1]
            for number in self._next
        }

    def _asked_for(self, answer: Message) -> MessageId | None:
        """Return the id of the message that an answer is about; None for a record that is no answer of this job.

        Whoever may write to the results topic, or lets another application deliver to it, can write what looks like
        one. The service's headers come last, and an answer has the id of its ask.
        """
        # Of headers with one name, the last.
        ask = dict(read_headers(answer) or ()).get(ID_HEADER)
        try:
            if not isinstance(ask, bytes) or parse_id(ask.decode())[0] not in self._settings.topics.input:
                raise ValueError("no record of an input topic has asked for it")
            return parse_id((answer.key() or b"").decode())
        except ValueError as problem:
            place = f"{answer.topic()}/{answer.partition()}/{answer.offset()}"
            log.warning("%s is none of this job's answers, whatever its value says: %s", place, problem)
            return None

    def _opened(self, isolation: str) -> Consumer:
        return Consumer(
            {
                **librdkafka_options(self._settings.kafka),
                "group.id": self._group,
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "on_commit": self._committed,
                "log_level": 2,
            },
            logger=client_log(log),
        )

    def _places(self, offsets: dict[int, int]) -> list[TopicPartition]:
        return [self._place(number, offset) for number, offset in offsets.items()]

    def _place(self, number: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._settings.results_topic, number, offset)


def says_recalled(value: bytes) -> bool:
    """Return whether the value of an answer says that a release process has recalled the message."""
    # Nearly all others are told apart without being parsed.
    if _RECALLED not in value:
        return False
    try:
        content = json.loads(value)
    # Whoever may write to the topic may nest lists without end.
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("reason") == Reason.RECALLED.code


def note_of(place: TopicPartition) -> Note | None:
    """Return what an earlier process has noted beside an offset; None if nothing was, as where a tool has set it."""
    if not place.metadata:
        return None
    if (found := _NOTE.fullmatch(place.metadata)) and _LEAST_KNOWN_FOR <= int(found[1]) <= _MOST_KNOWN_FOR:
        return Note(int(found[1]), found[2])
    log.warning(
        "ignoring unrecognized commit metadata of %s/%d: %.100r",
        place.topic, place.partition, place.metadata,
    )  # fmt: skip
    return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
