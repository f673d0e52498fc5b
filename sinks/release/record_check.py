"""Whether a topic accepts a record, and which dead letter replaces one that it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import TopicMismatch
from conf.rejected import MessageTooLarge, RecordRefused, Rejected, TopicClosed
from sinks.release.closed_topics import Closed, refused_by
from sinks.release.expiry import EXPIRING, Expiry
from sinks.release.records import (
    ANY_PARTITION,
    OVERDUE_MS,
    Record,
    as_dead_letter,
    bytes_at_most,
    message_ids,
    record_bytes,
    record_due_ms,
    record_id,
)
from sinks.release.stubs import as_stub
from sinks.release.wall_clock import now_ms
from sinks.topics.limits import NO_LIMIT, TopicLimits
from state.kinds import ANSWER, DEAD_LETTER, REQUEST, is_request
from state.stub import MOST_STUB_BYTES

# The records of a transaction that topics refused, with the error of each: by topic and message id.
Refusals = Mapping[tuple[str, bytes], Rejected]
# librdkafka's own limit of a batch of records.
_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class RecordCheck:
    """The knowledge with which a transaction is written: the limits of the topics, and their earlier refusals.

    Overdue records for the topics `stamped_by_due` must not have the present time as their timestamp. The `closed`
    topics take no records, or not in each partition. The topics `reserved` take no messages, since their readers would
    take them for answers, or delay them again. Their values say what they have become.
    The producer makes batches of up to `batch_bytes`, for any topic. A topic that takes less is called small.
    A client that `compresses` may bring a record below a limit that its uncompressed size exceeds. Only the broker can
    decide that, so such a record is tried.
    `refused` has the errors of refusals by topic and message id. The dead-letter topic may refuse the dead letter of a
    message and then the stub. If it was an output topic earlier, it may have refused the message before.
    """

    limits: Mapping[str, TopicLimits]
    dead_letter: str
    compresses: bool
    batch_bytes: int
    refused: Mapping[tuple[str, bytes], Sequence[Rejected]]
    expiry: Expiry
    # The clock by which messages expire, epoch ms: the same for a whole transaction.
    clock_ms: int
    reserved: Mapping[str, str]
    stamped_by_due: Collection[str] = ()
    closed: Mapping[str, Closed] = field(default_factory=dict)

    def may_doubt(self, topics: Collection[str], largest_bytes: int) -> bool:
        """Return whether `doubted` may find a message to one of `topics`, with a record of up to `largest_bytes`.

        Mostly it cannot, and a look at each column would take as long as to make the records.
        """
        if self.refused or self.closed or self.stamped_by_due or self.expiry.exists:
            return True
        if not self.reserved.keys().isdisjoint(topics):
            return True
        limits = (self.limits[topic] for topic in topics)
        return any(largest_bytes > each.max_bytes or each.needs_key or _has_short_memory(each) for each in limits)

    def apart(self, batch: pa.RecordBatch, topics: Collection[str], largest_bytes: int) -> list[int]:
        """Return the rows of the messages that must be written one by one: the doubted ones, and those to small topics.

        They go to `topics`, and their largest record takes `largest_bytes` at most.
        """
        has_small = any(self.is_small(self.limits[topic]) for topic in topics)
        if not has_small and not self.may_doubt(topics, largest_bytes):
            return []
        limits, which = self._limits_of(batch)
        small = np.array([self.is_small(each) for each in limits], bool)[which]
        return np.flatnonzero(self.doubted(batch, largest_bytes) | small).tolist()

    def doubted(self, batch: pa.RecordBatch, largest_bytes: int) -> npt.NDArray[np.bool_]:
        """Return, a column at a time, for which messages `admitted` may change the record."""
        limits, which = self._limits_of(batch)
        reserved = pa.array([*self.reserved], pa.string())
        doubted = _bools(pc.is_in(batch.column("output_topic"), reserved)) & ~is_request(batch)
        if largest_bytes > min((each.max_bytes for each in limits), default=NO_LIMIT):
            doubted |= bytes_at_most(batch) > np.array([each.max_bytes for each in limits])[which]
        if any(each.needs_key for each in limits) and batch.column("key").null_count:
            doubted |= np.array([each.needs_key for each in limits])[which] & _bools(batch.column("key").is_null())
        if any(_has_short_memory(each) for each in limits):
            oldest_ms = now_ms() - np.array([each.max_age_ms // 2 for each in limits])[which]
            doubted |= batch.column("deliver_at_ms").to_numpy() < oldest_ms
            doubted |= ~np.array([each.ends_transactions for each in limits])[which]
        if self.stamped_by_due:
            by_due = pc.is_in(batch.column("output_topic"), pa.array(self.stamped_by_due, pa.string()))
            doubted |= _bools(by_due) & (batch.column("deliver_at_ms").to_numpy() < now_ms() - OVERDUE_MS)
        if self.expiry.exists:
            doubted |= self.expiry.doubted(batch, self.clock_ms)
        if self.closed:
            doubted |= refused_by(batch, self.closed)
        if self.refused:
            known = pa.array({identity for _, identity in self.refused}, pa.binary())
            doubted |= _bools(pc.is_in(message_ids(batch), known))
        return doubted

    def is_small(self, limits: TopicLimits) -> bool:
        """Return whether a batch of the producer may be larger than a topic with these limits takes."""
        return limits.batch_bytes < self.batch_bytes

    def admitted(self, record: Record, timestamp_ms: int, kind: int) -> Record:
        """Return `record`, or the dead letter that takes its place, or the stub if that is refused as well.

        `timestamp_ms` (epoch ms) is the timestamp of the input record, and `kind` the row's kind (`state.kinds`). A
        dead letter for the topic of a former `topics.dead_letter` keeps its error if that topic refuses it. Raises
        TopicMismatch if the stub is too large, or was refused.
        """
        if record.topic in self.stamped_by_due:
            record = record._replace(timestamp_ms=record_due_ms(record))
        # Half of the age, since the broker's clock may be ahead of this one.
        elif record.timestamp_ms < now_ms() - self.limits[record.topic].max_age_ms // 2:
            record = record._replace(timestamp_ms=now_ms())
        error, tried = self._objection(record, kind), 0
        if error is not None and kind != DEAD_LETTER:
            # The topic may be the dead-letter topic by now: then its first refusal is the message's.
            tried = int(record.topic == self.dead_letter)
            record = as_dead_letter(record, timestamp_ms, self.dead_letter, error)
            error = self._objection(record, DEAD_LETTER, tried)
        elif error is not None and record.topic != self.dead_letter:
            record = record._replace(topic=self.dead_letter, partition=ANY_PARTITION)
            error = self._objection(record, DEAD_LETTER)
        if error is None:
            return record
        stub = as_stub(record)
        is_too_large = record_bytes(stub) > self.limits[self.dead_letter].max_bytes
        if is_too_large or len(self._refusals(stub)) > tried + 1:
            raise _stub_refused(self.dead_letter, record_id(stub), error)
        return stub

    def is_tried(self, record: Record) -> bool:
        """Return whether the broker may find the record too large, although `admitted` returned it."""
        limits = self.limits[record.topic]
        return limits.shared_bytes != NO_LIMIT or (self.compresses and record_bytes(record) > limits.max_bytes)

    def _limits_of(self, batch: pa.RecordBatch) -> tuple[list[TopicLimits], npt.NDArray[np.int32]]:
        """Return the limits of the topics of `batch`, and for each message which of these are its topic's."""
        topics = batch.column("output_topic").dictionary_encode()
        return [self.limits[topic] for topic in topics.dictionary.to_pylist()], np.asarray(topics.indices)

    def _refusals(self, record: Record) -> Sequence[Rejected]:
        """Return the errors of the refusals of its message by the record's topic."""
        return self.refused.get((record.topic, record_id(record)), ()) if self.refused else ()

    def _objection(self, record: Record, kind: int, tried: int = 0) -> Rejected | None:
        """Return why the record's topic refuses it, or None if no reason is known.

        The first `tried` refusals of its topic are refusals of the message that it replaces.
        """
        topic = record.topic
        limits = self.limits[topic]
        if topic in self.reserved and kind not in (REQUEST, ANSWER):
            return TopicClosed(f"output topic {topic} has become {self.reserved[topic]}")
        if kind in EXPIRING and self.expiry.exists and (expired := self.expiry.objection(record, self.clock_ms)):
            return expired
        if (closed := self.closed.get(topic)) is not None and record.partition >= closed.partitions:
            return closed.error
        if len(known := self._refusals(record)) > tried:
            return known[tried]
        if record.key is None and limits.needs_key:
            return RecordRefused(f"the record has no key, and cleanup.policy of {topic} is compact")
        # A dead letter is written in any case: as a stub it would be without its value.
        if not limits.ends_transactions and topic != self.dead_letter:
            return RecordRefused(
                f"message.timestamp.before.max.ms of {topic} is {limits.max_age_ms}. A broker may never end "
                "a transaction with records for such a topic"
            )
        size = record_bytes(record)
        if size <= limits.max_bytes or self.compresses:
            return None
        return MessageTooLarge(f"the record has {size} bytes, and max.message.bytes of {topic} is {limits.max_bytes}")


def _stub_refused(topic: str, identity: bytes, error: Rejected) -> TopicMismatch:
    """Return the error for a dead-letter topic that does not even take the stub of the message `identity`."""
    return TopicMismatch(
        f"dead-letter topic {topic} refuses message {identity.decode()} and also a stub of it: {error}. "
        f"Allow records with a key of up to {MOST_STUB_BYTES} bytes there (max.message.bytes), and start the "
        "job again. Nothing is lost"
    )


def _has_short_memory(limits: TopicLimits) -> bool:
    """Return whether the topic may refuse a timestamp that `sinks.release.records` gives."""
    return limits.max_age_ms // 2 < OVERDUE_MS


def _bools(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), bool)


def compresses(options: Mapping[str, str]) -> bool:
    """Return whether a producer with these options of librdkafka compresses."""
    return any(options.get(name, "none") != "none" for name in ("compression.type", "compression.codec"))


def batch_bytes(options: Mapping[str, str]) -> int:
    """Return how many bytes a producer with these options of librdkafka puts into a batch of several records."""
    return int(options.get("batch.size", _BATCH_BYTES))
