"""The ring of a shard: producers that are filled ahead, one after the other, and ended in the same order on time.

A transaction that begins right after the end of another one with the same transactional id waits 20 to 100 ms for the
coordinator. So each shard uses several ids in turn. Transaction n + 1 ends only after the end of n is acknowledged,
since its position includes the position of n.

Opening a ring fences all producers of earlier rings. The position is read after that, and only then. So no producer is
replaced alone: it would fence a producer of another process without reading the position written by that process. A
producer is left out if its commit may have been sent twice. A ring with too few producers left is replaced.

Two rings may open at the same time. Each opens its first producer before the others, and uses it first. A ring that
loses its first producer fails before it commits anything, whichever of the others it still has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException

from conf.failpoints import failpoint
from conf.kafka.clients import OPEN_TIMEOUT_S
from conf.settings import Settings
from sinks.internal_topics.position import Position
from sinks.internal_topics.position_reader import read_position
from sinks.internal_topics.transactional_ids import transactional_id
from sinks.release.fault_search import FaultSearch, GroupRefused
from sinks.release.known_topics import CLOCKS_APART_MS, Topics
from sinks.release.planned import Planned
from sinks.release.release_producer import ReleaseProducer
from sinks.release.reports import Offsets, Unwritable
from sinks.release.transaction import TransactionWriter
from sinks.release.wall_clock import now_ms

log = logging.getLogger(__name__)

# Enough for the lead of 100 ms in slices of 20 ms, one that is ended, and one that is filled.
PRODUCERS = 8
# With fewer producers that may be filled, transactions may be filled too late.
_FEWEST = 4
_POLL_S = 0.05
# How long the thread that ends transactions sleeps before it looks again whether it must stop.
_PIECE_S = 0.1


# Takes the messages of a transaction, the reasons of those that became dead letters by row, the offsets of its
# records, and when its commit was acknowledged (epoch ms).
OnReleased = Callable[[pa.Table, Mapping[int, str], Offsets, int], None]


class ClockSetBack(Exception):
    """The clock of this host was set back: released messages, or ones in open transactions, are due much later now."""


class Ring:
    """The producers of one shard, in turn. A context manager. After an error it must be replaced by a new one.

    Its state is the state between two threads: the caller fills transactions, and another thread ends them.
    """

    def __init__(
        self,
        settings: Settings,
        options: Mapping[str, str],
        shard: int,
        topics: Topics,
        on_released: OnReleased = lambda *_: None,
    ) -> None:
        """Fence the earlier rings, end their open transactions, and read the shard's position.

        `on_released` is called, in the thread that ends transactions, after each that has messages.

        Raises KafkaException, BrokerUnreachable, TopicMissing, CheckpointMismatch.
        """
        self._shard = shard
        self._topics = topics
        self._on_released = on_released
        self._longest_wait_ms = settings.release.transaction_timeout // 2
        timeout_s = max(settings.release.transaction_timeout / 1000, OPEN_TIMEOUT_S)
        ids = [ring_id(settings.application_id, shard, number) for number in range(PRODUCERS)]
        producers = [ReleaseProducer(settings, options, topics, each) for each in ids]
        self._writers = [TransactionWriter(settings, producer, topics, shard) for producer in producers]
        first, *others = producers
        first.open(timeout_s)
        failpoint("ring-fencing")
        with ThreadPoolExecutor(max_workers=len(others)) as threads:
            for _ in threads.map(lambda producer: producer.open(timeout_s), others):
                failpoint("ring-fencing")
        self.position = read_position(options, settings.position_topic, shard, after_fencing=True)
        failpoint("position-read")
        # The newest position that this ring has committed.
        self.committed: Position | None = None
        # How many producers may be filled, now or once they are free again.
        self._usable = PRODUCERS
        self._free: SimpleQueue[TransactionWriter] = SimpleQueue()
        for writer in self._writers:
            self._free.put(writer)
        self._filled: deque[tuple[TransactionWriter, Planned]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        # By the monotonic clock: when a transaction was ended last, and since when one is being ended, if one is.
        self.ended_s = time.monotonic()
        self.ending_since_s: float | None = None
        self._ender = threading.Thread(target=self._end_all, name=f"shard-{shard}-end", daemon=True)
        self._ender.start()

    @property
    def is_worn(self) -> bool:
        """Whether so many producers are spent that a new ring should replace this one."""
        return self._usable < _FEWEST

    @property
    def longest_open_s(self) -> float:
        """How long the oldest open transaction has been open, in s; 0 if no transaction is open."""
        return max((writer.producer.open_s for writer in self._writers), default=0.0)

    def write(self, planned: Planned, position: Position, search: FaultSearch | None) -> Mapping[int, str] | None:
        """Fill the next transaction, and pass it on to be ended when its last message is due.

        Returns the reasons of the messages that became dead letters, by row; None, and writes nothing, if the
        ring is worn.

        Waits while all producers are in use, and until the topics take the records' timestamps. Raises what
        `TransactionWriter.fill` does, and the failure of an earlier transaction: ClockSetBack, or a KafkaException.
        When it raises GroupRefused or Unwritable, all earlier transactions are committed.
        """
        while True:
            self.check()
            if self.is_worn:
                return None
            try:
                writer = self._free.get(timeout=_POLL_S)
                break
            except Empty:
                continue
        try:
            self._wait_until(self._topics.write_at_ms(planned))
            writer.fill(planned, position, search)
        except (GroupRefused, Unwritable):
            # Otherwise they would have to be written again, and the refused one is searched as the first one.
            self.wait_all()
            raise
        failpoint("transaction-filled")
        # Once it is passed on, the writer may be filled again.
        replaced = writer.replaced
        with self._changed:
            self._filled.append((writer, planned))
            self._changed.notify_all()
        return replaced

    def _wait_until(self, instant_ms: int) -> None:
        while (early_ms := instant_ms - now_ms()) > 0:
            if early_ms > self._longest_wait_ms + CLOCKS_APART_MS:
                raise ClockSetBack
            self.check()
            time.sleep(min(early_ms / 1000, _PIECE_S))

    def check(self) -> None:
        """Raise the failure of a transaction, if one failed."""
        if self._failure is not None:
            raise self._failure

    def wait_all(self) -> None:
        """Wait until all transactions are ended. Raises the failure of one."""
        with self._changed:
            while self._filled and self._failure is None:
                self._changed.wait(_POLL_S)
        self.check()

    def close(self) -> None:
        """Abort what is open if the brokers answer; the next ring does in any case. May be called again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._ender.join()
        for writer in self._writers:
            writer.producer.drop()
        # This includes a transaction that was filled in part: until it is aborted, it hides later records.
        writers, self._writers = self._writers, []
        for writer in writers:
            try:
                if writer.producer.is_open:
                    writer.producer.abort()
            except KafkaException as problem:
                # The first error is the one to raise; the next ring or the timeout ends the transaction. The other
                # producers may each wait as long for brokers that do not answer.
                log.warning("shard %d: could not abort transactions: %s", self._shard, problem)
                break

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _end_all(self) -> None:
        try:
            while self._end_next():
                pass
        except BaseException as failure:  # noqa: BLE001, `check` raises it in the thread that fills
            self._failure = failure

    def _end_next(self) -> bool:
        """End the oldest transaction when its last message is due. Return whether to go on."""
        with self._changed:
            while not self._filled and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return False
            writer, planned = self._filled[0]
        due_ms = planned.last_due_ms
        while (early_ms := due_ms - now_ms()) > 0:
            if early_ms > self._longest_wait_ms:
                raise ClockSetBack
            if self._stopping:
                return False
            time.sleep(min(early_ms / 1000, _PIECE_S))
        self.ending_since_s = time.monotonic()
        try:
            writer.producer.commit()
            failpoint("transaction-ended")
        finally:
            self.ended_s, self.ending_since_s = time.monotonic(), None
        if planned.messages.num_rows:
            self._on_released(planned.messages, writer.replaced, writer.offsets, now_ms())
        with self._changed:
            self._filled.popleft()
            self.committed = planned.position
            self._changed.notify_all()
        if writer.producer.is_spent:
            self._usable -= 1
        else:
            self._free.put(writer)
        return True


def ring_id(application_id: str, shard: int, number: int) -> str:
    """Return the transactional id of one producer of a shard's ring."""
    return transactional_id(application_id, "release", shard, number)
