"""The messages that release processes have recalled: the job follows the recalled topic, and forgets what is old.

The topic is read from its beginning by each process, beside its first batches. What it has is on the driver's local
disk from then on (`streaming.job.requests.id_runs`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing

import pyarrow as pa
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from conf.errors import BrokerUnreachable, InvariantViolated, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.known_from import KnownFrom
from sinks.internal_topics.log_producer import ProducerFenced
from sinks.internal_topics.newest_record import NO_SUCH_PARTITION, reader_options
from sinks.topics.topics import input_bounds, input_offsets_at, partition_counts
from state.checkpoint.origin import as_offsets, by_partition
from state.message_ids import ID_SCHEMA, Ids
from state.recalled import Recall, partition_of_shard, read_recall
from streaming.job.requests.id_runs import IdRuns
from streaming.job.requests.local_database import table_from

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_AT_ONCE = 10_000
# How many records are kept as single objects before they become a run.
_MOST_FOUND = 100_000
# How long the transactions are waited for that are open when the topic is read. They last for milliseconds, unless the
# process hangs or is dead; then its successor, or the broker, ends them.
_OPEN_S, _PAUSE_S = 0.2, 0.01
# What runs have of each id: also an instant before which it was due (epoch ms), and the partition of its record.
_RUN_SCHEMA = ID_SCHEMA.append(pa.field("max_deliver_at_ms", pa.int64())).append(pa.field("bucket", pa.int64()))

Bounds = Mapping[tuple[str, int], int]


class RecalledMessages:
    """What the recalled topic says. Not thread-safe but for `known_from`."""

    def __init__(self, settings: Settings, has_run: bool = False) -> None:
        """Read nothing yet. `has_run` says whether earlier processes have handed messages over."""
        self._settings = settings
        self._has_run = has_run
        self._consumer: Consumer | None = None
        # Knows the ends of the topic with what is not committed. It reads nothing.
        self._reader_of_all: Consumer | None = None
        # How far each partition is read; empty before the first time.
        self._next: dict[int, int] = {}
        self._runs = IdRuns()
        self._known_from: Bounds | None = None
        self._knows_all = True

    @property
    def known_from(self) -> Bounds:
        """From which offset of each input partition on it is known which messages were cancelled.

        Of those below, it may be forgotten: their records are deleted, or older than `cancels.known_for`, or the topic
        that said so is lost. Only grows, also for later processes. Empty before the first `read`. Any thread may ask.
        """
        return self._known_from or {}

    @property
    def knows_all(self) -> bool:
        """Whether the last `read` has read all that was recalled before: nothing is read behind an open transaction."""
        return self._knows_all

    def read(self, cutoff_ms: int) -> None:
        """Read the topic up to now. The first time, move `known_from` on as well: see `forget`.

        Waits through an outage; raises BrokerUnreachable after `kafka.outage_limit`, RightMissing, TopicMissing.
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

    def forget(self, cutoff_ms: int, due_before_ms: int) -> None:
        """Read the topic up to now, move `known_from` on, and forget what was due before `due_before_ms` below it.

        What is forgotten must be old for all that ask later, also after a restart: so the age counts by `cutoff_ms`,
        the cutoff of a batch, which never goes back, and not by the clock. Both are epoch ms. In an outage nothing is
        forgotten. Raises RightMissing, TopicMissing.
        """
        try:
            self._read_on(cutoff_ms, wait_s=0)
            bounds = self._bounds_at(cutoff_ms)
            if bounds != self._known_from:
                with closing(KnownFrom(self._settings)) as stored:
                    self._move(stored, bounds, due_before_ms)
        except ProducerFenced:
            log.warning("another process of this application has begun to forget what was recalled")
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
            raise right_missing("Read", f"topic {self._settings.recalled_topic}") from problem
        # The topic was there when the job started.
        if isinstance(problem, KafkaException) and problem.args[0].name() in NO_SUCH_PARTITION:
            return BrokerUnreachable(f"the broker does not know its partitions: {problem}")
        return problem

    def _bounds_at(self, cutoff_ms: int) -> Bounds:
        """Return the bounds, as they are if the newest cutoff is `cutoff_ms`. Raises BrokerUnreachable."""
        old_below = input_offsets_at(self._settings, cutoff_ms - self._settings.cancels.known_for)
        return _highest(self.known_from, old_below)

    def _move(self, stored: KnownFrom, bounds: Bounds, due_before_ms: int) -> None:
        """Move the bounds on to `bounds`, and to those that are `stored`."""
        if stored.bounds is not None:
            bounds = _highest(bounds, by_partition(stored.bounds))
        elif self._has_run:
            # What the lost topic has said is about messages that were published by now.
            bounds = _highest(bounds, {source: end for source, (_, end) in input_bounds(self._settings).items()})
            log.warning(
                "%s is new: who asks for a message that is handed over or delivered, and was published until now, may "
                "get `unknown` from here on",
                self._settings.recalled_topic,
            )
        self._has_run = True
        if stored.bounds is None or bounds != by_partition(stored.bounds):
            old = self._runs.old(due_before_ms, bounds)
            forgotten = (
                (partition, (*source, offset))
                for source, offsets, partitions in old
                for offset, partition in zip(offsets.tolist(), partitions.tolist(), strict=True)
            )
            stored.move(as_offsets(bounds), forgotten)
        self._runs.forget(due_before_ms, bounds)
        self._known_from = bounds

    def _read_on(self, cutoff_ms: int, wait_s: float) -> None:
        """Read on up to now, but for what lies behind transactions that are open for longer than `wait_s`."""
        if self._known_from is None:
            with closing(KnownFrom(self._settings)) as stored:
                self._move(stored, self._bounds_at(cutoff_ms), due_before_ms=0)
        consumer = self._consumer = self._consumer or self._opened("read_committed")
        if not self._next:
            count = partition_counts(self._settings, [self._settings.recalled_topic])
            if not count:
                raise TopicMissing(f"{self._settings.recalled_topic} does not exist")
            self._next = dict.fromkeys(range(partition_of_shard(0), count[self._settings.recalled_topic]), 0)
        bounds = self._ends(consumer, wait_s)
        if any(high < self._next[number] for number, (_, high) in bounds.items()):
            # It was made anew, and has new bounds.
            self._next, self._known_from = {}, None
            self._read_on(cutoff_ms, wait_s)
            return
        begins = {number: max(self._next[number], low) for number, (low, _) in bounds.items()}
        ends = {number: high for number, (_, high) in bounds.items() if high > begins[number]}
        found: dict[bytes | None, tuple[Recall, int]] = {}
        left = set(ends)
        consumer.assign([self._place(number, begins[number]) for number in ends])
        try:
            while left:
                first = consumer.poll(_TIMEOUT_S)
                if first is None:
                    raise BrokerUnreachable(f"{self._settings.recalled_topic} cannot be read")
                # Not with a time: it would wait for as many messages until then.
                for message in (first, *consumer.consume(_AT_ONCE, 0)):
                    error, number, offset = message.error(), message.partition(), message.offset()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error is None:
                        self._take(message, found)
                    if number is not None and offset is not None and offset + (error is None) >= ends[number]:
                        left.discard(number)
                if len(found) > _MOST_FOUND:
                    self._add(found)
        finally:
            consumer.unassign()
        # What was added of a reading that fails is added again: that changes nothing.
        self._add(found)
        self._next = begins | ends

    def _ends(self, consumer: Consumer, wait_s: float) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of each partition, for a reader of committed records.

        The end is before a transaction that is still open. Such transactions are waited for up to `wait_s`.
        """
        until_s = time.monotonic() + wait_s
        # No admin client: that goes on with the leaders' epochs that it knows, and brokers refuse these once one of
        # them has started anew, until the client asks for metadata after many minutes.
        of_all = self._reader_of_all = self._reader_of_all or self._opened("read_uncommitted")
        written = {number: of_all.get_watermark_offsets(self._place(number), _TIMEOUT_S)[1] for number in self._next}
        while True:
            bounds = {number: consumer.get_watermark_offsets(self._place(number), _TIMEOUT_S) for number in self._next}
            self._knows_all = all(end >= written[number] for number, (_, end) in bounds.items())
            if self._knows_all or time.monotonic() > until_s:
                return bounds
            time.sleep(_PAUSE_S)

    def _take(self, message: Message, found: dict[bytes | None, tuple[Recall, int]]) -> None:
        key, value, number = message.key(), message.value(), message.partition()
        assert number is not None
        if value is None:
            # An earlier process has forgotten it.
            found.pop(key, None)
            return
        try:
            found[key] = read_recall(key, value), number
        except InvariantViolated as problem:
            log.warning("ignoring %s/%d/%s: %s", message.topic(), number, message.offset(), problem)

    def _add(self, found: dict[bytes | None, tuple[Recall, int]]) -> None:
        rows = [(*recall.id, recall.due_before_ms, partition) for recall, partition in found.values()]
        found.clear()
        self._runs.add(table_from(rows, _RUN_SCHEMA))

    def _opened(self, isolation: str) -> Consumer:
        options = reader_options(librdkafka_options(self._settings.kafka), self._settings.recalled_topic)
        return Consumer({**options, "isolation.level": isolation}, logger=client_log(log))

    def _place(self, number: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._settings.recalled_topic, number, offset)


def _highest(one: Bounds, other: Bounds) -> Bounds:
    return {source: max(one.get(source, 0), other.get(source, 0)) for source in one.keys() | other.keys()}
