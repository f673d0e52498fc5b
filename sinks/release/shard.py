"""The release of one shard: read its two logs, plan, and write each transaction ahead of its time.

`ShardRelease._release` tells the steps. They run in a thread; the ring has another one, which ends transactions.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from conf.errors import BrokerUnreachable, DeliveryFailed, MessageTooLarge, RecordRefused
from conf.kafka.error_codes import FENCED
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.group.parts import PartTaken, PartThread
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.position import Position
from sinks.release.closed_topics import ClosedTopics, needs_of, united_needs
from sinks.release.counts import ReleaseCounts
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.known_topics import CLOCKS_APART_MS, Topics
from sinks.release.lateness import LatenessWindow
from sinks.release.log_reader import LogReader
from sinks.release.near_end import NearEnd
from sinks.release.pending import Pending, Planned
from sinks.release.rate_limiter import RateLimiter, shares
from sinks.release.recently_released import RecentlyReleased
from sinks.release.reports import Offsets, Unwritable
from sinks.release.rewrites import MOST_REWRITES, Rewrites
from sinks.release.ring import PRODUCERS, ClockSetBack, Ring
from sinks.release.room import Limits
from sinks.release.transaction import FaultSearch, GroupRefused
from sinks.release.wall_clock import now_ms
from sinks.topics.topics import partition_counts

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

# How long to wait for records of the logs at most, before the thread looks whether it must stop.
_POLL_S = 0.2
# The same while the broker is asked where the near log ends.
_ANSWER_S = 0.005
_COUNT_EVERY_S = 1.0
_WARN_EVERY_S = 60.0
# How long nothing is pending until the position is moved to the end of the log: not after each of frequent messages.
_IDLE_S = 1.0
# How long rates hold, by the partitions that the topics had.
_RATES_S = 10.0
# After so long without an error of reading, the next one begins another outage: a shard without records has no other
# sign that the one before is over.
_QUIET_S = 60.0
# Of the memory that a shard may use: transactions that are not committed yet have this share, chunks the rest.
_SHARE_OF_TRANSACTIONS = 0.25
# How much later than planned now the last transaction may end, until the clock counts as set back.
_SET_BACK_MS = 1_000
# How long to wait before a transaction is written again that was refused for no known reason.
_AGAIN_S = 1.0
# The client's errors, without the topic's name, for a topic that is missing or barred, or a transaction that it failed.
_OF_SOME_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._STATE}


@dataclass(frozen=True)
class ReleaseContext:
    """What all shards of a release process share. `member` is the name of the process."""

    settings: Settings
    member: str
    counts: ReleaseCounts = field(default_factory=ReleaseCounts)

    @cached_property
    def closed(self) -> ClosedTopics:
        """The output topics that do not take records any more."""
        return ClosedTopics(self.settings, librdkafka_options(self.settings.kafka))


@dataclass(frozen=True)
class Backlog:
    """What is handed over and not released: about how many messages, and when the first is due (epoch ms), if any."""

    messages: int = 0
    next_due_ms: int | None = None


class ShardRelease(PartThread):
    """Releases one shard. If it is stopped, it aborts what is not due.

    `position` is the newest that is known to be committed. `drained` says whether nothing is pending of what was read,
    `backlog` how much there was a second ago. `releasing` says whether messages go out: the logs were read to their
    ends, and the shard waits for no broker.
    """

    def __init__(self, context: ReleaseContext, shard: int) -> None:
        super().__init__("shard", shard, self._release)
        self.shard = shard
        self.position: Position | None = None
        self.drained = self.releasing = False
        self.backlog = Backlog()
        self._counted_s = 0.0
        # When new producers were logged last, by the monotonic clock.
        self._renewed_s = -_WARN_EVERY_S
        # When something was pending last, by the monotonic clock.
        self._busy_s = 0.0
        # When the thread last went on, by the monotonic clock.
        self._stepped_s = time.monotonic()
        self._newest_ring: Ring | None = None
        self._context = context
        self._settings = context.settings
        self._closed = context.closed
        # How many closed topics had been found to take records again when the rates were read.
        self._reopened = 0
        self._options: Mapping[str, str] = librdkafka_options(context.settings.kafka)
        self._near_end = NearEnd(self._settings, self._options, shard)
        # How many partitions the topics had, whose rates are limited, when these were read.
        self._partitions: Mapping[str, int] = {}
        self._rates_read_s = 0.0
        self._limiter = self._rate_limiter()
        self._lateness = LatenessWindow()
        self._recently = RecentlyReleased(self._settings.topics.dead_letter)
        # Transactions that are written and not known to be committed, in order.
        self._in_flight: deque[Planned] = deque()
        self._search: FaultSearch | None = None
        self._pending: Pending | None = None
        # The retries of reading, and when it failed last, by the monotonic clock.
        self._reading: BrokerRetry | None = None
        self._read_failed_s = 0.0
        # What the position counts after the transaction that was refused last.
        self._refused_until = (0, 0, 0)
        self._rewrites = Rewrites(shard, self._stopping)
        # The retries of writing since the last transaction that is known to be committed.
        self._writing = self._retry()
        self.share_memory(1)

    def share_memory(self, shards: int) -> None:
        """Set between how many shards the memory of the process is divided."""
        release = self._settings.release
        share = release.max_bytes // shards
        self._most_pending_bytes = int(share * (1 - _SHARE_OF_TRANSACTIONS))
        self._most_transaction_bytes = int(share * _SHARE_OF_TRANSACTIONS) // PRODUCERS

    def _limits(self, topics: Topics, clock_ms: int) -> Limits:
        release = self._settings.release
        return Limits(
            release.transaction_messages,
            self._most_transaction_bytes,
            release.slice,
            self._limiter.most_at_once,
            partial(topics.goes_to, clock_ms=clock_ms),
        )

    def _rate_limiter(self) -> RateLimiter:
        """Return the shard's own limits."""
        settings, shards = self._settings, self._settings.bucket.shards
        by_topic = shares(settings.rates.by_topic, self._partitions, self.shard, shards)
        return RateLimiter(settings.release.messages_per_second / shards, by_topic)

    def _read_rates(self) -> None:
        """Read how many partitions the topics have whose rates are limited."""
        retry = self._retry()
        self._reopened = self._closed.reopened
        self._rates_read_s = time.monotonic()
        while limited := self._settings.rates.by_topic:
            try:
                self._partitions = partition_counts(self._settings, limited)
                self._limiter = self._rate_limiter()
                return
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)

    def _read_rates_of(self, messages: pa.Table) -> None:
        """Read the rates again if one of `messages` is for a partition that its topic did not have then.

        Not for each of them: a topic that was made anew with fewer partitions never has it.
        """
        if time.monotonic() < self._rates_read_s + _RATES_S:
            return
        topics, numbers = messages.column("output_topic"), messages.column("output_partition")
        for topic, count in self._partitions.items():
            if pc.any(pc.and_(pc.equal(topics, topic), pc.greater_equal(numbers, count))).as_py():
                self._read_rates()
                return

    @property
    def still_s(self) -> float:
        """For how long one of the two threads has not gone on, in s: filling, or ending a transaction.

        A wait goes on: for messages, for a rate, or for brokers between two tries. One try may take as long as the
        client allows, such as `release.transaction_timeout`.
        """
        now_s, ring = time.monotonic(), self._newest_ring
        if ring is None:
            return now_s - self._stepped_s
        # Filling waits for the transactions before: it goes on when they end.
        still_s, ending_since_s = now_s - max(self._stepped_s, ring.ended_s), ring.ending_since_s
        return still_s if ending_since_s is None else max(still_s, now_s - ending_since_s)

    def _step(self) -> None:
        self._stepped_s = time.monotonic()

    def _release(self) -> None:
        """Release until stopped, or until the clock is set back.

        1. Open the ring, which fences all others, and read the position.
        2. Read both logs from there to their ends: what is due first may be in the last record.
        3. Again and again: take in what has come, plan what is due within the lead, and write it.

        After the clock was set back all begins at 1: what comes in meanwhile may be due before what was written ahead.

        Raises PartTaken; BrokerUnreachable after `kafka.outage_limit`; the errors of the logs and of topics that
        need an operator.
        """
        self._in_flight.clear()
        self._search = None
        topics = Topics(self._settings, self._options, self._closed)
        self._read_rates()
        # 1. Open the ring.
        self._ring = self._open_ring(topics)
        try:
            self.position = self._ring.position
            # From now on no other process takes messages out for asks.
            started_ms = now_ms()
            # 2. Read up to the ends.
            with self._open_reader() as reader:
                position = reader.position
                if position.below is not None and position.below.deliver_at_ms > started_ms:
                    # Otherwise all that is due before would count as late, and go out together.
                    position = position.set_back()
                    log.warning(
                        "shard %d: messages up to %s were released by a clock that was ahead",
                        self.shard,
                        reader.position,
                    )
                pending = self._pending = Pending(position, started_ms, self._recently.find)
                while not reader.at_end and not self._stopping.is_set():
                    self._step()
                    self._take(reader, pending, _POLL_S)
                    self._count(pending)
                log.info("shard %d: released up to %s", self.shard, reader.position)
                # 3. Take in, plan and write.
                while not self._stopping.is_set():
                    self.releasing = True
                    self._step()
                    self._settle(topics)
                    if self._closed.reopened != self._reopened:
                        # It may have been created again, with another number of partitions.
                        self._read_rates()
                    next_ms = pending.next_due_ms
                    self.drained = pending.is_empty and not self._in_flight
                    self._count(pending)
                    most_s = _ANSWER_S if pending.needs_near_end else _POLL_S
                    early_ms = most_s * 1000 if next_ms is None else next_ms - self._settings.release.lead - now_ms()
                    self._take(reader, pending, min(max(early_ms, 0) / 1000, most_s))
                    planned = self._plan(topics, reader, pending) or self._past_end(pending)
                    self._write(topics, planned)
        except ClockSetBack:
            log.warning(
                "shard %d: this host's clock was set back. Messages wait until the clock reaches their due time again",
                self.shard,
            )
        finally:
            self.releasing = False
            self._close_ring(topics)

    def _open_ring(self, topics: Topics, retry: BrokerRetry | None = None) -> Ring:
        """Open a ring whose position is not behind what this process knows to be committed."""
        retry = retry or self._retry()
        while True:
            self._step()
            try:
                ring = Ring(self._settings, self._options, self.shard, topics, self._released)
                if self.position is None or (ring.position and ring.position.counts >= self.position.counts):
                    self._newest_ring = ring
                    return ring
                ring.close()
                raise BrokerUnreachable(
                    f"{self._settings.position_topic}/{self.shard} has lost the committed position "
                    f"{self.position}: its last position is {ring.position}"
                )
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)

    def _close_ring(self, topics: Topics) -> None:
        """Close the ring, and forget the transactions that it has committed."""
        self._ring.close()
        self._settle(topics)

    def _open_reader(self) -> LogReader:
        retry = self._retry()
        while True:
            try:
                return LogReader(self._settings, self._options, self.shard, self.position)
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)

    def _take(self, reader: LogReader, pending: Pending, timeout_s: float) -> None:
        """Add what has come to `pending`; wait for it up to `timeout_s`."""
        try:
            for place, summary, payload in reader.read(timeout_s):
                pending.add(place, summary, payload)
                self._limit(pending)
                self._reading = None
            pending.reach(reader.ends)
            self._near_end.look(pending)
        except KafkaException as problem:
            if self._reading is None or time.monotonic() > self._read_failed_s + _QUIET_S:
                self._reading = self._retry()
            self._reading.wait(problem)
            self._read_failed_s = time.monotonic()

    def _limit(self, pending: Pending) -> None:
        pending.max_bytes = self._most_pending_bytes
        if pending.nbytes > pending.max_bytes:
            pending.shrink()

    def _plan(self, topics: Topics, reader: LogReader, pending: Pending) -> Planned | None:
        """Return the next transaction, or None if none is due within the lead.

        Raises ClockSetBack if what is planned already is due much later than that.
        """
        retry = self._retry()
        release = self._settings.release
        while True:
            clock_ms = now_ms()
            below = pending.position.below
            if below is not None and below.deliver_at_ms > clock_ms + release.lead + release.slice + _SET_BACK_MS:
                raise ClockSetBack
            try:
                limits = self._limits(topics, clock_ms)
                return pending.plan(clock_ms, clock_ms + release.lead, limits)
            except PayloadMissing as missing:
                # What is read again for asks is needed once, and may be more than there is room for.
                self._limit(pending)
                try:
                    for place, payload in reader.read_again(missing.places):
                        pending.restore(place, payload)
                except (KafkaException, BrokerUnreachable) as problem:
                    retry.wait(problem)

    def _past_end(self, pending: Pending) -> Planned | None:
        """Return a transaction that says that the logs are released to their ends, some time after the last one."""
        now_s = time.monotonic()
        if not self.drained:
            self._busy_s = now_s
        return pending.past() if now_s > self._busy_s + _IDLE_S else None

    def _settle(self, topics: Topics) -> None:
        """Forget the transactions that are committed, and what was refused of them."""
        committed = self._ring.committed
        if committed is not None and committed is not self.position:
            self._forget_up_to(committed)
        if topics.refused and self.position is not None and self.position.counts >= self._refused_until:
            topics.refused.clear()

    def _forget_up_to(self, position: Position | None) -> None:
        self.position = position
        marks = [planned.position.mark for planned in self._in_flight]
        if position is not None and position.mark in marks:
            self._writing.end()
            for _ in range(marks.index(position.mark) + 1):
                self._in_flight.popleft()

    def _write(self, topics: Topics, planned: Planned | None) -> None:
        """Write a transaction, and again with a new ring what is not committed after a failure.

        If a topic refuses it, it is written with a dead letter for each message that is to blame. So it is if a topic
        is gone, or barred, and the service can do without it.
        """
        todo: deque[Planned] = deque()
        if not self._in_flight:
            self._writing.end()
        if planned is not None:
            self._read_rates_of(planned.messages)
            charges = self._limiter.charges(planned.messages, partial(topics.goes_to, clock_ms=now_ms()))
            if not self._limiter.wait(charges, self._stopping, self._step):
                # The next process plans it again.
                return
            self._in_flight.append(planned)
            todo.append(planned)
        retry = self._writing
        # What is in flight when it stops, the next process plans again.
        while not self._stopping.is_set():
            begun_ms = now_ms()
            self._step()
            try:
                self._ring.check()
                while todo or self._ring.is_worn:
                    begun_ms, begun_s = now_ms(), time.monotonic()
                    if self._ring.is_worn:
                        self._renew(topics, retry)
                        continue
                    if todo[0].passed_on is not None:
                        # Until it is committed, it hides what follows in the ready log of another shard.
                        self._ring.wait_all()
                    replaced = self._ring.write(todo[0], self._signed(todo[0].position), self._search)
                    if replaced is None:
                        continue
                    self._search = None
                    if todo.popleft() is planned:
                        # Only now is known what has expired while it waited, or was refused.
                        went_to = partial(topics.went_to, replaced=replaced)
                        self._limiter.spend(self._limiter.charges(planned.messages, went_to), begun_s)
                return
            except GroupRefused as refusal:
                self._settle(topics)
                refused = self._in_flight[0].position
                # Also what the refusal has named already is kept until then.
                self._refused_until = refused.counts
                tries = self._rewrites.count(refused, refusal.topic, refusal.error)
                before = topics.limits[refusal.topic]
                self._ask(retry, partial(topics.learn, [refusal.topic]))
                changed = before != topics.limits[refusal.topic]
                self._reopen(topics, retry)
                self._search = self._narrowed(topics, refusal, begun_ms, tries, limits_changed=changed)
            except Unwritable as unwritable:
                self._close_topic(topics, unwritable, retry)
                self._reopen(topics, retry)
            except KafkaException as failure:
                self._recover(topics, retry, failure)
            todo = deque(self._in_flight)

    def _recover(self, topics: Topics, retry: BrokerRetry, failure: KafkaException) -> None:
        """Open a new ring after `failure`.

        Raises PartTaken if another process has opened a ring meanwhile; TopicMissing or RightMissing if a topic is
        gone, or may not be written to, without which the service cannot go on.
        """
        self.releasing = False
        open_s, most_s = self._ring.longest_open_s, self._settings.release.transaction_timeout / 1000
        self._close_ring(topics)
        if failure.args[0].code() in FENCED and open_s >= most_s:
            raise PartTaken(
                f"a transaction was open for {open_s:.1f} s, but Kafka aborts transactions after {most_s:g} "
                f"s (release.transaction_timeout): {failure}"
            ) from failure
        if failure.args[0].code() in FENCED:
            raise PartTaken(f"another release process has taken it ({failure})") from failure
        self._search = None
        unwritable = None
        if failure.args[0].code() in _OF_SOME_TOPIC:
            named = {topic for planned in self._in_flight for topic in topics.of(planned)}
            unwritable = self._ask(retry, lambda: topics.look_for(named))
        if unwritable is not None:
            self._close_topic(topics, unwritable, retry)
        elif failure.args[0].code() in _OF_SOME_TOPIC:
            retry.wait(BrokerUnreachable(f"all topics accept records again: {failure}"))
        else:
            retry.wait(failure)
        self._reopen(topics, retry)

    def _close_topic(self, topics: Topics, unwritable: Unwritable, retry: BrokerRetry) -> None:
        """Wait until it is certain that topics take no records: what is for them becomes dead letters from then on.

        If it is not, return after a pause. Raises the error of a topic without which the service cannot go on.
        """
        self.releasing = False
        self._close_ring(topics)
        self._search = None
        if not self._closed.may_close(unwritable.topic):
            raise unwritable.error
        # It takes some seconds. So all topics are looked at for which a message is here: those who create topics and
        # delete them would stop the others for that time with each.
        planned = (needs_of(planned.messages) for planned in self._in_flight)
        needs = united_needs([*planned, *([] if self._pending is None else [self._pending.needs()])])
        if unwritable.topic not in self._ask(retry, lambda: self._closed.confirm(needs, self._stopping)):
            retry.wait(BrokerUnreachable(f"brokers do not agree about {unwritable.topic}: {unwritable.error}"))

    @staticmethod
    def _ask(retry: BrokerRetry, question: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return question()
            except KafkaException as problem:
                retry.wait(problem)

    def _renew(self, topics: Topics, retry: BrokerRetry) -> None:
        """Replace a worn ring, once all of its transactions are committed."""
        self._ring.wait_all()
        if time.monotonic() > self._renewed_s + _WARN_EVERY_S:
            self._renewed_s = time.monotonic()
            log.warning(
                "shard %d: opening new producers, because several commits were slow and may have been sent "
                "twice. If commits always take more than 80 ms on this cluster, raise "
                "kafka.retry.backoff.ms",
                self.shard,
            )
        self._reopen(topics, retry)

    def _reopen(self, topics: Topics, retry: BrokerRetry) -> None:
        """Open a new ring, and forget the transactions that are committed.

        Raises PartTaken if another process has released messages meanwhile.
        """
        self._close_ring(topics)
        known = [None if self.position is None else self.position.mark]
        known += [planned.position.mark for planned in self._in_flight]
        self._ring = self._open_ring(topics, retry)
        position = self._ring.position
        if (None if position is None else position.mark) not in known:
            raise PartTaken(f"another release process has released up to {position} meanwhile")
        self._forget_up_to(position)

    def _narrowed(
        self, topics: Topics, refusal: GroupRefused, begun_ms: int, tries: int, limits_changed: bool
    ) -> FaultSearch | None:
        """Return how to write the refused transaction, the first one in flight, so that the message to blame is found.

        A single one that is left is to blame, and so is what the client names; all that is for the topic, if it refuses
        so often that others would wait for too long, or after too many `tries`. Nothing is searched if the refusal may
        have another cause: limits that were changed meanwhile; a timestamp ahead of the broker's clock when it was
        written, at `begun_ms`; this host's time as the timestamp; or a first error that says nothing of the record.

        Raises DeliveryFailed if the topic refuses what goes on without its records.
        """
        topic, error, messages = refusal.topic, refusal.error, self._in_flight[0].messages
        # The dead-letter topic has more tries: what it refuses loses its value, so each such record is searched.
        most = MOST_REWRITES * (messages.num_rows if topic == self._settings.topics.dead_letter else 1)
        if tries > most:
            raise DeliveryFailed(f"{topic} refused a transaction {tries} times. The last error: {error}")
        if tries == most:
            topics.refuse_all(topic, messages, error)
            return None
        if limits_changed or not refusal.ids:
            return None
        # The batch may be too large, and each of its records small enough.
        is_shared = isinstance(error, MessageTooLarge) and len(refusal.ids) > 1
        if is_shared and topics.bound_batches(topic, refusal.nbytes):
            return None
        is_often = topics.refuses_often(topic)
        cause = error.cause if isinstance(error, RecordRefused) else None
        was_early = begun_ms < self._in_flight[0].last_due_ms + CLOCKS_APART_MS
        # If several records of a batch have a wrong timestamp, the client says only that they are invalid.
        if cause in ("timestamp", "record") and was_early and not is_often and topics.write_later(topic):
            return None
        if cause == "timestamp" and topics.stamp_by_due(topic):
            return None
        if cause == "other" and tries == 1 and not is_often:
            self._stopping.wait(_AGAIN_S)
            return None
        if refusal.is_certain:
            for identity in refusal.ids:
                topics.refuse(topic, identity, error)
        if is_often:
            topics.refuse_all(topic, messages, error)
            return None
        return None if refusal.is_certain else FaultSearch(refusal.suspects, is_first=self._search is None)

    def _count(self, pending: Pending) -> None:
        """Count the backlog anew, and let go of the memory of what is released, once a second."""
        if time.monotonic() - self._counted_s >= _COUNT_EVERY_S:
            self._counted_s = time.monotonic()
            self._recently.settle(now_ms())
            in_flight = sum(planned.messages.num_rows for planned in self._in_flight)
            due_ms = self._in_flight[0].last_due_ms if self._in_flight else pending.next_due_ms or None
            self.backlog = Backlog(pending.messages + in_flight, due_ms)

    def _released(self, messages: pa.Table, replaced: Mapping[bytes, str], offsets: Offsets, released_ms: int) -> None:
        self._recently.add(messages, replaced, offsets, released_ms)
        self._lateness.add(messages.column("deliver_at_ms"), released_ms)
        self._context.counts.add(messages, replaced, released_ms)

    def _signed(self, position: Position) -> Position:
        clock_ms = now_ms()
        lateness = self._lateness.quantiles(clock_ms)
        return replace(position, member=self._context.member, at_ms=clock_ms, lateness=lateness)

    def _retry(self) -> BrokerRetry:
        limit_ms = self._settings.kafka.outage_limit
        return BrokerRetry(f"shard {self.shard}", limit_ms, self._stopping.is_set, self._waits)

    def _waits(self) -> None:
        self._step()
        self.releasing = False
