"""One transactional producer of a shard: fills a transaction with messages and the position after them.

It is filled ahead of its time, and ended by another thread (`sinks.release.ring`). A record that its topic refuses goes
to the dead-letter topic. The producer names refused records for certain only if no other record is in flight. So a
transaction is first written as a whole; if a topic refuses something of it, it is written again with flushes between
groups of records, until a group has a single record of that topic (`FaultSearch`). If a topic refuses a batch of
several records for its size, its batches are made smaller instead, again and again (`Topics.bound_batches`): what it
refuses alone is too large.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from conf.errors import DeliveryFailed, Rejected
from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT, fatal_error_raised
from conf.kafka.repeated_commit import repeat_backoff, sent_once
from conf.kafka.rights import init_transactions
from conf.settings import Settings
from sinks.internal_topics.position import Position, position_key
from sinks.ready_log.chunk import chunk_record, most_deliveries, with_few_deliveries
from sinks.release.known_topics import Topics
from sinks.release.planned import Planned
from sinks.release.recall import Removal, next_shards
from sinks.release.record_check import RecordCheck, batch_bytes
from sinks.release.records import (
    ANY_PARTITION,
    NO_TIMESTAMP,
    Record,
    message_ids,
    record_bytes,
    record_id,
    records,
)
from sinks.release.reports import DeliveryReports, Offsets, Refused
from state.dead_letter import Headers, error_code
from state.message import split_by_bytes
from state.order import in_order
from state.recalled import Recall, partition_of_shard, recall_records

log = logging.getLogger(__name__)

# An error ends a transaction, but a flush goes on until the queued records have timed out. So errors are checked
# between pieces of the flush.
_FLUSH_PIECE_S = 0.1
# The client waits for a missing topic as if its broker were away. After this time without an answer, look for topics.
_SLOW_S = 5.0
_ABORT_S = 5.0
# Of asks in a chunk for another shard: with the headers that come back with the answers.
_ASKS_BYTES = 512 * 1024
# Of recalls between two flushes: 50 kB, and 170 kB with the longest topic names.
_RECALLS = 500
# The most suspects between two flushes: about as many as have room in a batch, mostly.
_FIRST_GROUP = 1_000
# Longer than it takes to fill a group, also on a busy host.
_LINGER_MS = 2_000
# How long the report of a record comes after the client has failed its transaction, at the most.
_REPORT_S = 1.0


class FaultSearch:
    """The search for the first records of a transaction that a topic refuses, whichever topic that is.

    `suspects` has the ids of consecutive messages, one of a refused record at least. It has those of all topics:
    several topics may refuse records, and whose answer comes first is chance.
    """

    def __init__(self, suspects: Collection[bytes], is_first: bool) -> None:
        """`is_first` says whether they were written as a whole, without groups."""
        self.suspects = frozenset(suspects)
        # If a batch has several such records, the client names each: so first, groups as large as batches. Then few
        # flushes are needed, for this round and the next one together.
        self.group = min(len(suspects), _FIRST_GROUP) if is_first else math.isqrt(len(suspects))


class GroupRefused(Exception):
    """`topic` refused a record of one of the messages `ids` with `error`; or of several, which are known already.

    If `is_certain`, it refuses those of all of them. `suspects` are the ids of the messages that were written together
    with it, to any topic. Of these, the records of `topic` have `nbytes` bytes.
    """

    def __init__(
        self,
        topic: str,
        error: Rejected,
        ids: Collection[bytes],
        suspects: Collection[bytes],
        nbytes: int,
        is_certain: bool,
    ) -> None:
        super().__init__(str(error))
        self.topic = topic
        self.error = error
        self.ids = ids
        self.suspects = suspects
        self.nbytes = nbytes
        self.is_certain = is_certain


class TransactionWriter:
    """A producer with a transactional id of its own, for one transaction at a time. After an error it is of no use.

    `is_open` says whether a transaction was begun and is neither committed nor aborted. `is_spent` says that the last
    commit may have been sent twice: the writer must not be filled again (`conf.kafka.repeated_commit`).
    """

    def __init__(
        self, settings: Settings, options: Mapping[str, str], topics: Topics, shard: int, transactional_id: str
    ) -> None:
        """Fence earlier producers of `transactional_id`, and end their open transaction: see `open`."""
        self._topics = topics
        self._shard = shard
        self._id = transactional_id
        self._position_topic = settings.position_topic
        self._ready_topic = settings.ready_topic
        self._recalled_topic = settings.recalled_topic
        self._most_deliveries = most_deliveries(settings.limits.max_message_bytes)
        self._timeout_s = settings.release.transaction_timeout / 1000
        self._reports = DeliveryReports()
        # The bytes of the records since the last flush, by topic and partition: of small topics alone.
        self._unflushed: dict[tuple[str, int], int] = {}
        # The messages of the transaction whose records became dead letters: the reason of each, by message id.
        self.replaced: dict[bytes, str] = {}
        self.is_open = self.is_spent = False
        # By the monotonic clock.
        self._begun_s = 0.0
        self._options = {**options, **repeat_backoff(options)}
        self._producer = Producer(
            {
                **self._options,
                **NO_SIZE_LIMIT,
                # With fewer, a full queue would wait for `linger.ms` again and again.
                "queue.buffering.max.messages": "500000",
                # Full batches cost the broker a fifth, and a group of `FaultSearch` must be a single batch of each
                # partition. A flush, which ends each filling, does not wait for this.
                "linger.ms": str(_linger_ms(options, settings.release.transaction_timeout)),
                "batch.num.messages": str(max(_FIRST_GROUP, int(options.get("batch.num.messages", 10_000)))),
                "logger": client_log(log),
                # The partitioner of Java's client; librdkafka's default differs.
                "partitioner": "murmur2_random",
                "batch.size": str(batch_bytes(options)),
                "on_delivery": self._reports.reported,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(settings.release.transaction_timeout),
            }
        )

    @property
    def offsets(self) -> Offsets:
        """The first and the last offset of the transaction's records, by topic and partition, once it is filled."""
        return self._reports.offsets

    @property
    def open_s(self) -> float:
        """For how long its transaction has been open, in s; 0 if none is."""
        return time.monotonic() - self._begun_s if self.is_open else 0.0

    def open(self, timeout_s: float) -> None:
        """Fence earlier producers. Raises KafkaException, RightMissing."""
        # A client that is not connected yet looks for its coordinator again only after half a second.
        self._producer.list_topics(self._position_topic, timeout_s)
        init_transactions(self._producer, self._id, timeout_s)

    @fatal_error_raised()
    def fill(self, planned: Planned, position: Position, search: FaultSearch | None) -> None:
        """Write a transaction, and wait until the brokers have all of its records.

        Raises GroupRefused if a topic refuses a record that was expected to be accepted; Unwritable for a topic that
        was deleted, has too few partitions, or that the login may not write to; TopicMismatch for a dead-letter topic
        that does not even take stubs; KafkaException for other errors.
        """
        check = self._topics.check_of(planned)
        topics = self._topics.of(planned)
        self._producer.begin_transaction()
        self.is_open, self._begun_s = True, time.monotonic()
        self.replaced = {}
        self._reports.begin()
        try:
            if search is None:
                self._fill_whole(planned, check, topics)
            else:
                self._fill_in_groups(planned, check, search, topics)
            if planned.passed_on is not None:
                self._pass_on(planned.passed_on)
            self._record(planned.recalled, topics)
            # No timestamp: the topic may limit it by the broker's clock.
            key, value = position_key(self._shard), position.to_bytes()
            self._produce([Record(NO_TIMESTAMP, self._position_topic, self._shard, key, value, [])])
            self._flush(topics)
        except Refused as refusal:
            if refusal.topic in (self._position_topic, self._ready_topic, self._recalled_topic):
                raise DeliveryFailed(
                    f"the release cannot write to {refusal.topic}: {refusal}. Nothing is lost"
                ) from None
            # The records as they were written: without what is learned from the refusal.
            written = list(self._checked(planned, check))
            raise self._group_refused(refusal, written, named=()) from None

    def _pass_on(self, asks: pa.Table) -> None:
        """Write asks to the ready log of the next shard."""
        for number, own in next_shards(in_order(asks), self._shard):
            pieces = (with_few_deliveries(each, self._most_deliveries) for each in split_by_bytes(own, _ASKS_BYTES))
            for piece in chain.from_iterable(pieces):
                value, headers = chunk_record(piece)
                own_headers: Headers = [(name, content) for name, content in headers if isinstance(content, bytes)]
                self._produce([Record(NO_TIMESTAMP, self._ready_topic, number, None, value, own_headers)])

    def _record(self, removals: Iterable[Removal], topics: Collection[str]) -> None:
        """Write to the recalled topic what was taken out, in batches that a topic of any limit has room for."""
        partition = partition_of_shard(self._shard)
        made = chain.from_iterable(
            recall_records(each.ids, Recall(each.until.deliver_at_ms, each.epoch)) for each in removals
        )
        records_of = (Record(NO_TIMESTAMP, self._recalled_topic, partition, key, value, []) for key, value in made)
        for number, batch in enumerate(iter(lambda: list(islice(records_of, _RECALLS)), [])):
            if number:
                self._flush(topics)
            self._produce(batch)

    def commit(self) -> None:
        """Commit the transaction. Raises KafkaException."""
        begun_s = time.monotonic()
        self._producer.commit_transaction(self._timeout_s)
        self.is_open, self.is_spent = False, not sent_once(begun_s, self._options)

    def drop(self) -> None:
        """Discard the queued records, so that closing the producer does not wait for them."""
        self._producer.purge()

    def abort(self) -> None:
        """Abort the open transaction. Raises KafkaException."""
        self.drop()
        self._producer.abort_transaction(_ABORT_S)
        self.is_open = False

    def _checked(self, planned: Planned, check: RecordCheck) -> Iterable[Record]:
        for part in planned.messages.to_batches():
            may_expire = check.expiry.may_expire(part).tolist()
            for record, *terms in zip(records(part), part.column("timestamp_ms").to_pylist(), may_expire, strict=True):
                yield self._admitted(check, record, *terms)

    def _admitted(self, check: RecordCheck, record: Record, timestamp_ms: int, may_expire: bool) -> Record:
        admitted = check.admitted(record, timestamp_ms, may_expire)
        if admitted.topic != record.topic:
            self.replaced[record_id(admitted)] = error_code(admitted.headers)
        return admitted

    def _fill_whole(self, planned: Planned, check: RecordCheck, topics: Collection[str]) -> None:
        for part in planned.messages.to_batches():
            made, written = records(part), 0
            may_expire = check.expiry.may_expire(part)
            for row in check.apart(part, planned.topics, planned.largest_bytes):
                self._produce(islice(made, row - written))
                record = self._admitted(check, next(made), part.column("timestamp_ms")[row].as_py(), may_expire[row])
                self._make_room(record, check, topics)
                self._produce([record], self._reports.of_tried(record) if check.is_tried(record) else None)
                written = row + 1
            self._produce(made)

    def _fill_in_groups(
        self, planned: Planned, check: RecordCheck, search: FaultSearch, topics: Collection[str]
    ) -> None:
        group: list[Record] = []
        # What one batch has room for, with some to spare.
        most_bytes, nbytes = check.batch_bytes // 2, 0
        # Records, and not suspects: an ask has the id of the replacement that it comes with.
        left = sum(identity in search.suspects for identity in message_ids(planned.messages).to_pylist())
        try:
            for record in self._checked(planned, check):
                suspect = record_id(record) in search.suspects
                if suspect and not group:
                    self._flush(topics)
                if suspect:
                    group.append(record)
                    nbytes += record_bytes(record)
                    left -= 1
                self._make_room(record, check, topics)
                self._produce([record], self._reports.of_tried(record))
                # The last group may be a smaller one. What comes after it may be refused too, and is no part of it.
                if suspect and (len(group) == search.group or nbytes > most_bytes or not left):
                    self._flush(topics)
                    group, nbytes = [], 0
        except Refused as refusal:
            # Nothing else was in flight: what was written after the group's first record is of the group.
            if not group:
                raise
            raise self._group_refused(refusal, group, refusal.named) from None

    def _group_refused(self, refusal: Refused, written: Collection[Record], named: Collection[bytes]) -> GroupRefused:
        """Return the error for records that were in flight together, and remember what is too large.

        `named` are the ids that the client names, if they were in a single batch: it names none if the fault is of one
        record, and what it says of several batches cannot be told apart.
        """
        own = {record_id(record): record_bytes(record) for record in written if record.topic == refusal.topic}
        if refusal.refusals:
            self._topics.refuse_too_large(refusal.topic, refusal.refusals, own)
            ids: Collection[bytes] = ()
        else:
            ids = named or own
        suspects = {record_id(record) for record in written}
        return GroupRefused(
            refusal.topic, refusal.error, ids, suspects, sum(own.values()), bool(named) or len(ids) == 1
        )

    def _make_room(self, record: Record, check: RecordCheck, topics: Collection[str]) -> None:
        """Flush if `record` might else share a batch that is larger than its topic takes.

        The client has one `batch.size` for all topics. If that were the smallest limit, one topic would cost the others
        their large batches. A refused batch costs the whole transaction and a new ring. A flush takes below 1 ms.
        """
        limits = check.limits[record.topic]
        if not check.is_small(limits):
            return
        # The client chooses the partition of some dead letters.
        place = record.topic, ANY_PARTITION if record.topic == check.dead_letter else record.partition
        # Each counted as a batch of its own: a little too much.
        nbytes = record_bytes(record)
        if self._unflushed.get(place, 0) + nbytes > limits.batch_bytes:
            self._flush(topics)
        self._unflushed[place] = self._unflushed.get(place, 0) + nbytes

    def _produce(self, batch: Iterable[Record], on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Add records to the open transaction; waits while the producer's queue is full.

        It waits for one record until the transaction's timeout at most.
        """
        produce: Callable[..., None] = self._producer.produce
        if on_delivery is not None:
            produce = partial(produce, callback=on_delivery)
        for deliver_at_ms, topic, partition, key, value, headers in batch:
            full_by_s = None
            while True:
                try:
                    # 0 would mean "now" to the client.
                    produce(topic, value, key, partition, timestamp=deliver_at_ms or 1, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.1)
                    self._reports.check()
                    now_s = time.monotonic()
                    full_by_s = full_by_s or now_s + self._timeout_s
                    if now_s > full_by_s:
                        raise _unconfirmed(self._timeout_s) from None
                except KafkaException as problem:
                    # An earlier record failed the transaction, and its error is more specific. It may come a moment
                    # later.
                    until_s = time.monotonic() + (_REPORT_S if problem.args[0].code() == KafkaError._STATE else 0)
                    self._producer.poll(0)
                    self._reports.check()
                    while time.monotonic() < until_s:
                        self._producer.poll(_FLUSH_PIECE_S)
                        self._reports.check()
                    raise self._reports.error(problem.args[0], topic, partition) from problem

    def _flush(self, topics: Collection[str]) -> None:
        """Wait until the brokers have all records; until the transaction's timeout at most."""
        begun_s = time.monotonic()
        asked = False
        while self._producer.flush(_FLUSH_PIECE_S):
            self._reports.check()
            waited_s = time.monotonic() - begun_s
            if waited_s > self._timeout_s:
                raise _unconfirmed(waited_s)
            if waited_s > _SLOW_S and not asked:
                asked = True
                if (unwritable := self._topics.look_for(topics)) is not None:
                    raise unwritable
        self._reports.check()
        self._unflushed.clear()


def _unconfirmed(waited_s: float) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no confirmation of records after {waited_s:.0f} s"))


def _linger_ms(options: Mapping[str, Any], transaction_timeout_ms: int) -> int:
    """Return for how long the client may wait for more records: it takes no more than a record's own timeout."""
    timeouts_ms = [int(options.get(name, 0)) for name in ("message.timeout.ms", "delivery.timeout.ms")]
    # 0 is no timeout.
    return min(_LINGER_MS, *(each // 2 for each in (*timeouts_ms, transaction_timeout_ms) if each))
