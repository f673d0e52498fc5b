"""The client of one transaction of the release: a producer, its reports about records, and its patience.

It does not know messages: `sinks.release.transaction` decides which records are written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from conf.kafka.client_log import client_log
from conf.kafka.clients import NO_SIZE_LIMIT
from conf.kafka.repeated_commit import repeat_backoff, sent_once
from conf.kafka.rights import init_transactions
from conf.settings import Settings
from sinks.release.fault_search import FIRST_GROUP
from sinks.release.known_topics import Topics
from sinks.release.record_check import batch_bytes
from sinks.release.records import Record
from sinks.release.reports import DeliveryReports

log = logging.getLogger(__name__)

# An error ends a transaction, but a flush goes on until the queued records have timed out. So errors are checked
# between pieces of the flush.
_FLUSH_PIECE_S = 0.1
# How long the report of a record comes after the client has failed its transaction, at the most.
_REPORT_S = 1.0


class ReleaseProducer:
    """A producer with a transactional id of its own, for one transaction at a time. After an error it is of no use.

    `is_open` says whether a transaction was begun and is neither committed nor aborted. `is_spent` says that the last
    commit may have been sent twice: no other may follow (`conf.kafka.repeated_commit`). `reports` has the fate of the
    transaction's records.
    """

    def __init__(self, settings: Settings, options: Mapping[str, str], topics: Topics, transactional_id: str) -> None:
        """`topics` are looked for if the brokers do not answer. For other errors see `open`."""
        self._topics = topics
        self._id = transactional_id
        self._position_topic = settings.position_topic
        self._timeout_s = settings.release.transaction_timeout / 1000
        self.reports = DeliveryReports()
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
                "linger.ms": str(_linger_ms(topics.waits.linger, options, settings.release.transaction_timeout)),
                "batch.num.messages": str(max(FIRST_GROUP, int(options.get("batch.num.messages", 10_000)))),
                "logger": client_log(log),
                # The partitioner of Java's client; librdkafka's default differs.
                "partitioner": "murmur2_random",
                "batch.size": str(batch_bytes(options)),
                "on_delivery": self.reports.reported,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(settings.release.transaction_timeout),
            }
        )

    @property
    def open_s(self) -> float:
        """How long its transaction has been open, in s; 0 if no transaction is open."""
        return time.monotonic() - self._begun_s if self.is_open else 0.0

    def open(self, timeout_s: float) -> None:
        """Fence earlier producers of the id, and end their open transaction. Raises KafkaException, RightMissing."""
        # A client that is not connected yet looks for its coordinator again only after half a second.
        self._producer.list_topics(self._position_topic, timeout_s)
        init_transactions(self._producer, self._id, timeout_s)

    def begin(self) -> None:
        """Begin a transaction. Raises KafkaException."""
        self._producer.begin_transaction()
        self.is_open, self._begun_s = True, time.monotonic()
        self.reports.begin()

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
        self._producer.abort_transaction(self._topics.waits.abort)
        self.is_open = False

    def produce(self, batch: Iterable[Record], on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Add records to the open transaction; waits while the producer's queue is full.

        It waits for one record until the transaction's timeout at most.
        """
        add: Callable[..., None] = self._producer.produce
        if on_delivery is not None:
            add = partial(add, callback=on_delivery)
        for deliver_at_ms, topic, partition, key, value, headers in batch:
            full_by_s = None
            while True:
                try:
                    # 0 would mean "now" to the client.
                    add(topic, value, key, partition, timestamp=deliver_at_ms or 1, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.1)
                    self.reports.check()
                    now_s = time.monotonic()
                    full_by_s = full_by_s or now_s + self._timeout_s
                    if now_s > full_by_s:
                        raise _unconfirmed(self._timeout_s) from None
                except KafkaException as problem:
                    # An earlier record failed the transaction, and its error is more specific. It may come a moment
                    # later.
                    until_s = time.monotonic() + (_REPORT_S if problem.args[0].code() == KafkaError._STATE else 0)
                    self._producer.poll(0)
                    self.reports.check()
                    while time.monotonic() < until_s:
                        self._producer.poll(_FLUSH_PIECE_S)
                        self.reports.check()
                    raise self.reports.error(problem.args[0], topic, partition) from problem

    def flush(self, topics: Collection[str]) -> None:
        """Wait until the brokers have all records; until the transaction's timeout at most."""
        begun_s = time.monotonic()
        asked = False
        while self._producer.flush(_FLUSH_PIECE_S):
            self.reports.check()
            waited_s = time.monotonic() - begun_s
            if waited_s > self._timeout_s:
                raise _unconfirmed(waited_s)
            if waited_s > self._topics.waits.slow and not asked:
                asked = True
                if (unwritable := self._topics.look_for(topics)) is not None:
                    raise unwritable
        self.reports.check()


def _unconfirmed(waited_s: float) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no confirmation of records after {waited_s:.0f} s"))


def _linger_ms(longest_s: float, options: Mapping[str, Any], transaction_timeout_ms: int) -> int:
    """Return how long the client may wait for more records. It accepts no more than a record's own timeout."""
    timeouts_ms = [int(options.get(name, 0)) for name in ("message.timeout.ms", "delivery.timeout.ms")]
    # 0 means no timeout.
    return min(int(longest_s * 1000), *(each // 2 for each in (*timeouts_ms, transaction_timeout_ms) if each))
