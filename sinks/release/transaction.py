"""Writes one transaction of a shard: messages, and the position after them.

It is filled ahead of its time, and ended by another thread (`sinks.release.ring`). A record that its topic refuses goes
to the dead-letter topic, once it is found (`sinks.release.fault_search`). If a topic refuses a batch of several records
for its size, its batches are made smaller instead, again and again (`Topics.bound_batches`): a single record that it
refuses is too large.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from itertools import chain, islice

import pyarrow as pa

from conf.errors import DeliveryFailed
from conf.kafka.clients import fatal_error_raised
from conf.settings import Settings
from sinks.internal_topics.position import Position, position_key
from sinks.ready_log.chunk import chunk_record, most_deliveries, with_few_deliveries
from sinks.release.fault_search import FaultSearch, GroupRefused
from sinks.release.known_topics import Topics
from sinks.release.planned import Planned
from sinks.release.recall import next_shards
from sinks.release.record_check import RecordCheck
from sinks.release.records import (
    ANY_PARTITION,
    NO_TIMESTAMP,
    Record,
    message_ids,
    record_bytes,
    record_id,
    records,
)
from sinks.release.release_producer import ReleaseProducer
from sinks.release.removals import Removal
from sinks.release.reports import Offsets, Refused
from state.dead_letter import Headers, error_code
from state.kinds import DEAD_LETTER
from state.message import split_by_bytes
from state.order import in_order
from state.recalled import Recall, partition_of_shard, recall_records

log = logging.getLogger(__name__)

# The most bytes of requests in a chunk for another shard, with the headers that come back with the answers.
_REQUESTS_BYTES = 512 * 1024
# The most recalls between two flushes: 50 kB, and 170 kB with the longest topic names.
_RECALLS = 500


class TransactionWriter:
    """Fills the transactions of one `producer`, each with messages and the position after them."""

    def __init__(self, settings: Settings, producer: ReleaseProducer, topics: Topics, shard: int) -> None:
        """Write the messages of a shard; `topics` knows what their topics refuse."""
        self.producer = producer
        self._topics = topics
        self._shard = shard
        self._position_topic = settings.position_topic
        self._ready_topic = settings.ready_topic
        self._recalled_topic = settings.recalled_topic
        self._most_deliveries = most_deliveries(settings.limits.max_message_bytes)
        # The bytes of the records since the last flush, by topic and partition: of small topics alone.
        self._unflushed: dict[tuple[str, int], int] = {}
        # The messages of the transaction that became dead letters: the reason of each, by row.
        self.replaced: dict[int, str] = {}

    @property
    def offsets(self) -> Offsets:
        """The first and the last offset of the transaction's records, by topic and partition, once it is filled."""
        return self.producer.reports.offsets

    @fatal_error_raised()
    def fill(self, planned: Planned, position: Position, search: FaultSearch | None) -> None:
        """Write a transaction, and wait until the brokers have all of its records.

        Raises GroupRefused if a topic refuses a record that was expected to be accepted; Unwritable for a topic that
        was deleted, has too few partitions, or that the login may not write to; TopicMismatch for a dead-letter topic
        that does not even take stubs; KafkaException for other errors.
        """
        check = self._topics.check_of(planned)
        topics = self._topics.of(planned)
        self.producer.begin()
        self.replaced = {}
        try:
            if search is None:
                self._fill_whole(planned, check, topics)
            else:
                self._fill_in_groups(planned, check, search, topics)
            if planned.passed_on is not None:
                # The next shard reads nothing behind the requests until the transaction ends. Messages may hold it up.
                self._flush(topics)
                self._pass_on(planned.passed_on)
            self._record(planned.recalled, topics)
            # No timestamp: the topic may limit it by the broker's clock.
            key, value = position_key(self._shard), position.to_bytes()
            self.producer.produce([Record(NO_TIMESTAMP, self._position_topic, self._shard, key, value, [])])
            self._flush(topics)
        except Refused as refusal:
            if refusal.topic in (self._position_topic, self._ready_topic, self._recalled_topic):
                raise DeliveryFailed(
                    f"the release cannot write to {refusal.topic}: {refusal}. Nothing is lost"
                ) from None
            # The records as they were written, without the knowledge gained from the refusal.
            written = list(self._checked(planned, check))
            raise self._group_refused(refusal, written, named=()) from None

    def _pass_on(self, requests: pa.Table) -> None:
        """Write requests to the ready log of the next shard."""
        for number, own in next_shards(in_order(requests), self._shard):
            pieces = (with_few_deliveries(each, self._most_deliveries) for each in split_by_bytes(own, _REQUESTS_BYTES))
            for piece in chain.from_iterable(pieces):
                value, headers = chunk_record(piece)
                own_headers: Headers = [(name, content) for name, content in headers if isinstance(content, bytes)]
                self.producer.produce([Record(NO_TIMESTAMP, self._ready_topic, number, None, value, own_headers)])

    def _record(self, removals: Iterable[Removal], topics: Collection[str]) -> None:
        """Write the removed messages to the recalled topic, in batches that fit a topic with any limit."""
        partition = partition_of_shard(self._shard)
        made = chain.from_iterable(
            recall_records(each.ids, Recall(each.until.deliver_at_ms, each.epoch)) for each in removals
        )
        records_of = (Record(NO_TIMESTAMP, self._recalled_topic, partition, key, value, []) for key, value in made)
        for number, batch in enumerate(iter(lambda: list(islice(records_of, _RECALLS)), [])):
            if number:
                self._flush(topics)
            self.producer.produce(batch)

    def _checked(self, planned: Planned, check: RecordCheck) -> Iterable[Record]:
        first = 0
        for part in planned.messages.to_batches():
            for row, record in enumerate(records(part)):
                yield self._admitted(check, record, part, row, first)
            first += part.num_rows

    def _admitted(self, check: RecordCheck, record: Record, part: pa.RecordBatch, row: int, first: int) -> Record:
        """Return the record to write in place of `record`, which was made from a `row` of `part`.

        The messages of `part` begin with the row `first` of the transaction.
        """
        published_ms, kind = (part.column(name)[row].as_py() for name in ("timestamp_ms", "kind"))
        admitted = check.admitted(record, published_ms, kind)
        # The dead letter of a message may have its topic, if that is the dead-letter topic by now.
        if admitted.topic != record.topic or (kind != DEAD_LETTER and admitted.headers != record.headers):
            self.replaced[first + row] = error_code(admitted.headers)
        return admitted

    def _fill_whole(self, planned: Planned, check: RecordCheck, topics: Collection[str]) -> None:
        first = 0
        for part in planned.messages.to_batches():
            made, written = records(part), 0
            for row in check.apart(part, planned.topics, planned.largest_bytes):
                self.producer.produce(islice(made, row - written))
                record = self._admitted(check, next(made), part, row, first)
                self._make_room(record, check, topics)
                self.producer.produce(
                    [record], self.producer.reports.of_tried(record) if check.is_tried(record) else None
                )
                written = row + 1
            self.producer.produce(made)
            first += part.num_rows

    def _fill_in_groups(
        self, planned: Planned, check: RecordCheck, search: FaultSearch, topics: Collection[str]
    ) -> None:
        group: list[Record] = []
        # The room in one batch, with some to spare.
        most_bytes, nbytes = check.batch_bytes // 2, 0
        # Records, and not suspects: a request has the id of the replacement that it comes with.
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
                self.producer.produce([record], self.producer.reports.of_tried(record))
                # The last group may be smaller. Records after it may be refused too, and are not part of the group.
                if suspect and (len(group) == search.group or nbytes > most_bytes or not left):
                    self._flush(topics)
                    group, nbytes = [], 0
        except Refused as refusal:
            # Nothing else was in flight: all records since the group's first one belong to the group.
            if not group:
                raise
            raise self._group_refused(refusal, group, refusal.named) from None

    def _group_refused(self, refusal: Refused, written: Collection[Record], named: Collection[bytes]) -> GroupRefused:
        """Return the error for records that were in flight together, and remember the ones that are too large.

        `named` has the ids that the client names, if the records were in a single batch. It names no record if only one
        is at fault, and its reports for several batches cannot be told apart.
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

    def _flush(self, topics: Collection[str]) -> None:
        self.producer.flush(topics)
        self._unflushed.clear()
