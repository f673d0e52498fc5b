"""The messages that release processes have recalled: the job follows the recalled topic, and forgets what is old.

The topic is read from its beginning by each process, beside its first batches. What it has is on the driver's local
disk from then on (`streaming.job.requests.id_runs`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice

import pyarrow as pa
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable
from conf.kafka.client_log import client_log
from conf.kafka.error_codes import is_transient_read
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.log_producer import ProducerFenced
from sinks.internal_topics.newest_record import NO_SUCH_PARTITION, reader_options
from sinks.internal_topics.recalled_writer import RecalledWriter
from sinks.topics.topic_ids import PresentTopic, TopicIds
from sinks.topics.topics import input_bounds, input_offsets_at
from state.cancel import MessageId
from state.checkpoint.origin import as_offsets, by_partition
from state.message_ids import ID_SCHEMA, Ids
from state.recalled import KnownFrom, Recall, partition_of_shard, read_recall
from streaming.job.requests.id_runs import IdRuns
from streaming.job.requests.local_database import table_from

log = logging.getLogger(__name__)

_TIMEOUT_S, _POLL_S = 10.0, 1.0
_AT_ONCE = 10_000
# How many records are kept as single objects before they become a run.
_MOST_FOUND = 100_000
# How many records are deleted in one transaction: a second's work.
_DELETED_AT_ONCE = 10_000
# How long the transactions are waited for that are open when the topic is read. They last for milliseconds, unless the
# process hangs or is dead; then its successor, or the broker, ends them.
_OPEN_S, _PAUSE_S = 0.2, 0.01
# What runs have of each id: also an instant before which it was due (epoch ms), and the partition of its record.
_RUN_SCHEMA = ID_SCHEMA.append(pa.field("max_deliver_at_ms", pa.int64())).append(pa.field("bucket", pa.int64()))

Bounds = Mapping[tuple[str, int], int]
# By partition and key: the id, and what is recorded of it.
_Found = dict[tuple[int, bytes | None], tuple[MessageId, Recall]]


class RecalledMessages:
    """What the recalled topic says. Not thread-safe but for `known_from`."""

    def __init__(self, settings: Settings, epoch: int, has_run: bool = False) -> None:
        """Read nothing yet.

        `epoch` is the checkpoint's. `has_run` says whether earlier processes have handed messages over.
        """
        self._settings = settings
        self._topic = settings.recalled_topic
        self._epoch = epoch
        self._has_run = has_run
        self._topic_ids: TopicIds | None = None
        self._consumer: Consumer | None = None
        # Knows the ends of the topic with what is not committed. It reads nothing.
        self._reader_of_all: Consumer | None = None
        # Kafka's id of the topic, and how far each partition is read; None and empty before the first time.
        self._topic_id: str | None = None
        self._next: dict[int, int] = {}
        self._runs = IdRuns()
        self._known_from: Bounds = {}
        self._knows_all = True

    @property
    def known_from(self) -> Bounds:
        """From which offset of each input partition on it is known which messages were cancelled.

        Of those below, it may be forgotten: their records are deleted, or older than `cancels.known_for`, or the topic
        that said so is lost. Only grows, also for later processes. Empty before the first `read`. Any thread may ask.
        """
        return self._known_from

    @property
    def knows_all(self) -> bool:
        """Whether the last `read` has read all that was recalled before: nothing is read behind an open transaction."""
        return self._knows_all

    def read(self, cutoff_ms: int) -> None:
        """Read the topic up to now. The first time, move `known_from` on as well: see `forget`.

        Waits through an outage; raises BrokerUnreachable after `kafka.outage_limit`, RightMissing, TopicMissing,
        CheckpointMismatch, FormatMismatch.
        """
        retry = BrokerRetry("the recalled topic", self._settings.kafka.outage_limit)
        while True:
            try:
                self._read_on(cutoff_ms, _OPEN_S)
                return
            except ProducerFenced:
                # The lease tells which of the two goes on.
                retry.wait(BrokerUnreachable("another process of this application has begun to read it"))
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(self._cause_of(problem))

    def among(self, ids: Ids) -> Ids:
        """Return those of `ids` that were recalled, as far as it is read."""
        return {source: offsets for source, (offsets, _) in self._runs.buckets_of(ids).items()}

    def every(self) -> Iterable[tuple[tuple[str, int], list[int]]]:
        """Yield the offsets of all messages that were recalled, as far as it is read, some at a time, by source."""
        for source, offsets in self._runs.every():
            yield source, offsets.tolist()

    def forget(self, cutoff_ms: int, due_before_ms: int) -> None:
        """Read the topic up to now, move `known_from` on, and forget what was due before `due_before_ms` below it.

        What is forgotten must be old for all that ask later, also after a restart: so the age counts by `cutoff_ms`,
        the cutoff of a batch, which never goes back, and not by the clock. Both are epoch ms. In an outage nothing is
        forgotten. Raises RightMissing, TopicMissing, CheckpointMismatch, FormatMismatch.
        """
        try:
            present = self._read_on(cutoff_ms, wait_s=0)
            bounds = _highest(self._known_from, self._old_below(cutoff_ms))
            old = [piece for piece in self._runs.old(due_before_ms, bounds) if len(piece[1])]
            if bounds == self._known_from and not old:
                return
            with closing(RecalledWriter(self._settings)) as writer:
                # First: a message without its record must be old.
                self._move(writer, bounds, present)
                ids = (
                    (partition, (*source, offset))
                    for source, offsets, partitions in old
                    for offset, partition in zip(offsets.tolist(), partitions.tolist(), strict=True)
                )
                # Not of a topic before this one, which may have had more partitions.
                rest = (each for each in ids if each[0] in self._next)
                while piece := list(islice(rest, _DELETED_AT_ONCE)):
                    writer.delete(self._epoch, piece)
            self._runs.forget(due_before_ms, bounds)
        except ProducerFenced:
            log.warning("another process of this application has begun to delete old recalled ids")
        except (KafkaException, BrokerUnreachable) as problem:
            log.warning("the recalled topic could not be read ahead: %s", self._cause_of(problem))

    def close(self) -> None:
        """Close the consumers."""
        for consumer in (self._consumer, self._reader_of_all):
            if consumer is not None:
                consumer.close()

    def _cause_of(self, problem: KafkaException | BrokerUnreachable) -> KafkaException | BrokerUnreachable:
        """Return why the topic cannot be read. Raises RightMissing if waiting does not help."""
        if isinstance(problem, KafkaException) and is_refusal(problem.args[0]):
            raise right_missing("Read", f"topic {self._topic}") from problem
        # The topic was there when the job started.
        if isinstance(problem, KafkaException) and problem.args[0].name() in NO_SUCH_PARTITION:
            return BrokerUnreachable(f"the broker does not know its partitions: {problem}")
        return problem

    def _old_below(self, cutoff_ms: int) -> Bounds:
        """Return below which offsets records are old or deleted, by the newest cutoff. Raises BrokerUnreachable."""
        return input_offsets_at(self._settings, cutoff_ms - self._settings.cancels.known_for)

    def _move(self, writer: RecalledWriter, bounds: Bounds, present: Mapping[str, PresentTopic]) -> None:
        """Move `known_from` on to `bounds`, and to what is stored of the `present` input topics."""
        stored = writer.known_from
        input_ids = {topic: found.id for topic, found in present.items() if topic != self._topic}
        if stored is not None:
            same = {topic for topic, own in stored.input_ids.items() if own == input_ids.get(topic)}
            bounds = _highest(bounds, by_partition({topic: stored.offsets.get(topic, {}) for topic in same}))
        known_from = KnownFrom(as_offsets(bounds), input_ids, self._epoch)
        if known_from != stored:
            writer.move(known_from)
        self._known_from = bounds

    def _begin(self, cutoff_ms: int, present: Mapping[str, PresentTopic]) -> None:
        """Begin with the first records. If something was read before, what the topic has said since may be lost."""
        bounds = _highest(self._known_from, self._old_below(cutoff_ms))
        with closing(RecalledWriter(self._settings)) as writer:
            if self._topic_id is not None or (self._has_run and writer.known_from is None):
                bounds = _highest(bounds, {source: end for source, (_, end) in input_bounds(self._settings).items()})
                log.warning(
                    "%s is new, or has lost records. Requests about messages that are already staged or delivered may "
                    "be answered `unknown` from now on",
                    self._topic,
                )
            self._move(writer, bounds, present)
        self._topic_id = present[self._topic].id
        self._next = dict.fromkeys(range(partition_of_shard(0), present[self._topic].partitions), 0)

    def _read_on(self, cutoff_ms: int, wait_s: float) -> dict[str, PresentTopic]:
        """Read on up to now, but for what lies behind transactions that are open for longer than `wait_s`.

        Returns the topic and the input topics as they are now.
        """
        present = self._present()
        if present[self._topic].id != self._topic_id:
            self._begin(cutoff_ms, present)
        bounds = self._ends(wait_s)
        if any(0 < self._next[number] < low or high < self._next[number] for number, (low, high) in bounds.items()):
            self._begin(cutoff_ms, present)
            bounds = self._ends(wait_s)
        begins = {number: max(self._next[number], low) for number, (low, _) in bounds.items()}
        self._read_to(begins, {number: high for number, (_, high) in bounds.items() if high > begins[number]})
        return present

    def _read_to(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Read the partitions of `ends` up to there, from the offsets `begins` on."""
        consumer = self._opened()
        found: _Found = {}
        left = set(ends)
        consumer.assign([self._place(number, begins[number]) for number in ends])
        heard_s = time.monotonic()
        try:
            while left:
                if time.monotonic() > heard_s + _TIMEOUT_S:
                    raise BrokerUnreachable(f"{self._topic} cannot be read")
                # Not with a time: it would wait for as many messages until then.
                for message in (consumer.poll(_POLL_S), *consumer.consume(_AT_ONCE, 0)):
                    if message is None or not _is_record(message):
                        continue
                    heard_s = time.monotonic()
                    number, offset = message.partition(), message.offset()
                    assert number is not None
                    assert offset is not None
                    is_end = message.error() is not None
                    if not is_end:
                        self._take(message, number, found)
                    if offset + (not is_end) >= ends[number]:
                        left.discard(number)
                if len(found) > _MOST_FOUND:
                    self._add(found)
        finally:
            consumer.unassign()
        # What was added of a reading that fails is added again: that changes nothing.
        self._add(found)
        self._next = {**begins, **ends}

    def _ends(self, wait_s: float) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of each partition, for a reader of committed records.

        The end is before a transaction that is still open. Such transactions are waited for up to `wait_s`.
        """
        until_s = time.monotonic() + wait_s
        # No admin client: that goes on with the leaders' epochs that it knows, and brokers refuse these once one of
        # them has started anew, until the client asks for metadata after many minutes.
        of_all = self._reader_of_all = self._reader_of_all or self._made("read_uncommitted")
        consumer = self._opened()
        written = {number: of_all.get_watermark_offsets(self._place(number), _TIMEOUT_S)[1] for number in self._next}
        while True:
            bounds = {number: consumer.get_watermark_offsets(self._place(number), _TIMEOUT_S) for number in self._next}
            self._knows_all = all(end >= written[number] for number, (_, end) in bounds.items())
            if self._knows_all or time.monotonic() > until_s:
                return bounds
            time.sleep(_PAUSE_S)

    def _take(self, message: Message, number: int, found: _Found) -> None:
        key, value = message.key(), message.value()
        if value is None:
            # An earlier process has forgotten it.
            found.pop((number, key), None)
            return
        identity, recall = read_recall(key, value)
        # What was recalled before a fresh start was accepted again since.
        if recall.epoch == self._epoch:
            found[number, key] = identity, recall

    def _add(self, found: _Found) -> None:
        rows = [(*identity, recall.due_before_ms, number) for (number, _), (identity, recall) in found.items()]
        found.clear()
        self._runs.add(table_from(rows, _RUN_SCHEMA))

    def _present(self) -> dict[str, PresentTopic]:
        """Return the topic and the input topics as they are now. Raises BrokerUnreachable, KafkaException."""
        self._topic_ids = self._topic_ids or TopicIds(librdkafka_options(self._settings.kafka))
        found = self._topic_ids.described([self._topic, *self._settings.topics.input])
        if self._topic not in found:
            raise BrokerUnreachable(f"the broker does not know {self._topic}")
        return found

    def _opened(self) -> Consumer:
        self._consumer = self._consumer or self._made("read_committed")
        return self._consumer

    def _made(self, isolation: str) -> Consumer:
        options = reader_options(librdkafka_options(self._settings.kafka), self._topic)
        return Consumer({**options, "isolation.level": isolation}, logger=client_log(log))

    def _place(self, number: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topic, number, offset)


def _highest(one: Bounds, other: Bounds) -> Bounds:
    return {source: max(one.get(source, 0), other.get(source, 0)) for source in one.keys() | other.keys()}


def _is_record(message: Message) -> bool:
    """Return False for an error that passes. Raises KafkaException for others."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    if is_transient_read(error):
        return False
    raise KafkaException(error)
