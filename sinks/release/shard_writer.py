"""Writes the transactions of a shard in order. After a failure, a new ring writes the uncommitted ones again.

Records that a topic refuses go to the dead-letter topic (`narrowing`). So do messages for a topic that is gone or
barred, if the service can do without that topic (`closed_topics`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from conf.errors import BrokerUnreachable, ReadyLogLost
from conf.kafka.error_codes import FENCED
from conf.kafka.repeated_commit import SLOW_COMMITS_REMEDY
from sinks.group.parts import PartTaken
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.position import Position
from sinks.release.context import ReleaseContext
from sinks.release.fault_search import FaultSearch, GroupRefused
from sinks.release.known_topics import Topics
from sinks.release.narrowing import Narrowing
from sinks.release.partition_needs import needs_of, united_needs
from sinks.release.planned import Planned
from sinks.release.releases import Releases
from sinks.release.reports import Unwritable
from sinks.release.rewrites import Rewrites
from sinks.release.ring import Ring
from sinks.release.shard_beat import ShardBeat
from sinks.release.shard_rates import ShardRates
from sinks.release.wall_clock import now_ms

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
# Returns output topics, and how many partitions of each are needed.
Needs = Callable[[], dict[str, int]]

_WARN_EVERY_S = 60.0
# The client's errors, without the topic's name, for a topic that is missing or barred, or a transaction that it failed.
_OF_SOME_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._STATE}


class ShardWriter:
    """Writes the transactions of one shard, from `open` to `close`, again and again.

    `position` is the newest that is known to be committed, and `in_flight` has the transactions that are written and
    not known to be committed, in order. `ring` is the newest one. All else must outlive a ring: the next one writes the
    transactions in flight again, by what was learned of refusals and outages.
    """

    def __init__(
        self, context: ReleaseContext, shard: int, beat: ShardBeat, rates: ShardRates, releases: Releases
    ) -> None:
        self.position: Position | None = None
        self.in_flight: deque[Planned] = deque()
        self.ring: Ring | None = None
        self._context = context
        self._settings = context.settings
        self._shard = shard
        self._beat = beat
        self._rates = rates
        self._releases = releases
        self._topics = self._no_topics()
        self._search: FaultSearch | None = None
        # The counters of the position after the transaction that was refused last.
        self._refused_until = (0, 0, 0)
        self._rewrites = Rewrites(shard, beat.stopping)
        # The retries of writing since the last transaction that is known to be committed.
        self._writing = beat.retry()
        # When new producers were logged last, by the monotonic clock.
        self._renewed_s = -_WARN_EVERY_S

    @property
    def topics(self) -> Topics:
        """The knowledge of the topics since `open`."""
        return self._topics

    def open(self) -> Position | None:
        """Open a ring, which fences all others, and return the position. Nothing is known of the topics then.

        Raises BrokerUnreachable after `kafka.outage_limit`.
        """
        self.in_flight.clear()
        self._search = None
        self._topics = self._no_topics()
        self.ring = self._open_ring(self._beat.retry())
        self.position = self.ring.position
        return self.position

    def _no_topics(self) -> Topics:
        own = self._context
        return Topics(self._settings, own.options, own.closed, own.most_refusals, own.waits)

    def close(self) -> None:
        """Close the ring, if it is open, and forget the transactions that it has committed."""
        if self.ring is not None:
            self.ring.close()
            self.settle()

    def settle(self) -> None:
        """Forget the transactions that are committed, and their refusals."""
        assert self.ring is not None
        committed = self.ring.committed
        if committed is not None and committed is not self.position:
            self._forget_up_to(committed)
        if self._topics.refused and self.position is not None and self.position.counts >= self._refused_until:
            self._topics.refused.clear()

    def write(self, planned: Planned | None, needs: Needs) -> None:
        """Write a transaction; without one, look whether those in flight have failed.

        `needs` returns the topics and partitions that pending messages behind it need. Raises ClockSetBack; PartTaken
        if another process has the shard; BrokerUnreachable after `kafka.outage_limit`; the errors of topics that need
        an operator.
        """
        todo: deque[Planned] = deque()
        if not self.in_flight:
            self._writing.end()
        if planned is not None:
            self._rates.read_for(planned.messages)
            charges = self._rates.limiter.charges(planned.messages, partial(self._topics.goes_to, clock_ms=now_ms()))
            if not self._rates.limiter.wait(charges, self._beat.stopping, self._beat.step):
                # The next process plans it again.
                return
            self.in_flight.append(planned)
            todo.append(planned)
        # Transactions in flight when it stops are planned again by the next process.
        while not self._beat.stopping.is_set():
            begun_ms = now_ms()
            self._beat.step()
            try:
                assert self.ring is not None
                self.ring.check()
                while todo or self.ring.is_worn:
                    begun_ms, begun_s = now_ms(), time.monotonic()
                    if self.ring.is_worn:
                        self._renew()
                        continue
                    replaced = self._fill(todo[0])
                    if replaced is None:
                        continue
                    self._search = None
                    if todo.popleft() is planned:
                        # It is known only now which messages expired while they waited, or were refused.
                        went_to = partial(self._topics.went_to, replaced=replaced)
                        self._rates.limiter.spend(self._rates.limiter.charges(planned.messages, went_to), begun_s)
                return
            except GroupRefused as refusal:
                self._search = self._after(refusal, begun_ms)
            except Unwritable as unwritable:
                self._close_topic(unwritable, needs)
                self._reopen()
            except KafkaException as failure:
                self._recover(failure, needs)
            todo = deque(self.in_flight)

    def _fill(self, planned: Planned) -> Mapping[int, str] | None:
        """Do what `Ring.write` does."""
        assert self.ring is not None
        if planned.passed_on is not None:
            # Until it is committed, it hides later records in the ready log of another shard.
            self.ring.wait_all()
        return self.ring.write(planned, self._releases.signed(planned.position), self._search)

    def _after(self, refusal: GroupRefused, begun_ms: int) -> FaultSearch | None:
        """Open a new ring after a topic has refused the first transaction in flight, which was begun at `begun_ms`.

        Returns how to write it next.
        """
        self.settle()
        planned, topics = self.in_flight[0], self._topics
        # Also what the refusal has named already is kept until then.
        self._refused_until = planned.position.counts
        tries = self._rewrites.count(planned.position, refusal.topic, refusal.error)
        before = topics.limits[refusal.topic]
        self._ask(partial(topics.learn, [refusal.topic]))
        limits_changed = before != topics.limits[refusal.topic]
        self._reopen()
        narrowing = Narrowing(topics, self._settings.topics.dead_letter, self._beat.stopping)
        # After the ring was replaced, other transactions may be committed, and this one be the first still.
        return narrowing.next(refusal, self.in_flight[0], begun_ms, tries, limits_changed, self._search is None)

    def _recover(self, failure: KafkaException, needs: Needs) -> None:
        """Open a new ring after `failure`.

        Raises PartTaken if another process has opened a ring in the meantime. Raises TopicMissing or RightMissing if a
        topic that the service cannot do without is gone, or may not be written to.
        """
        assert self.ring is not None
        self._beat.releasing = False
        open_s, most_s = self.ring.longest_open_s, self._settings.release.transaction_timeout / 1000
        self.close()
        code = failure.args[0].code()
        if code in FENCED and open_s >= most_s:
            raise PartTaken(
                f"a transaction was open for {open_s:.1f} s, but Kafka aborts transactions after {most_s:g} "
                f"s (release.transaction_timeout): {failure}"
            ) from failure
        if code in FENCED:
            raise PartTaken(f"another release process has taken it ({failure})") from failure
        self._search = None
        unwritable = None
        if code in _OF_SOME_TOPIC:
            named = {topic for planned in self.in_flight for topic in self._topics.of(planned)}
            unwritable = self._ask(lambda: self._topics.look_for(named))
        if unwritable is not None:
            self._close_topic(unwritable, needs)
        elif code in _OF_SOME_TOPIC:
            self._writing.wait(BrokerUnreachable(f"all topics accept records again: {failure}"))
        else:
            self._writing.wait(failure)
        self._reopen()

    def _close_topic(self, unwritable: Unwritable, needs: Needs) -> None:
        """Wait until it is certain that topics take no records. Messages for them become dead letters from then on.

        If it is not, return after a pause. Raises the error of a topic without which the service cannot go on.
        """
        self._beat.releasing = False
        self.close()
        self._search = None
        closed = self._context.closed
        if not closed.may_close(unwritable.topic):
            raise unwritable.error
        # It takes some seconds. So all topics of pending messages are checked together: otherwise each deleted topic
        # would stop the others for that time.
        needed = united_needs([*(needs_of(planned.messages) for planned in self.in_flight), needs()])
        if unwritable.topic not in self._ask(lambda: closed.confirm(needed, self._beat.stopping)):
            problem = f"brokers do not agree about {unwritable.topic}: {unwritable.error}"
            self._writing.wait(BrokerUnreachable(problem))

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return question()
            except KafkaException as problem:
                self._writing.wait(problem)

    def _renew(self) -> None:
        """Replace a worn ring, once all of its transactions are committed."""
        assert self.ring is not None
        self.ring.wait_all()
        if time.monotonic() > self._renewed_s + _WARN_EVERY_S:
            self._renewed_s = time.monotonic()
            log.warning(
                "shard %d: opening new producers, because several commits were slow and may have been sent twice. %s",
                self._shard, SLOW_COMMITS_REMEDY,
            )  # fmt: skip
        self._reopen()

    def _reopen(self) -> None:
        """Open a new ring, and forget the transactions that are committed.

        Raises PartTaken if another process has released messages meanwhile.
        """
        self.close()
        known = [None if self.position is None else self.position.mark]
        known += [planned.position.mark for planned in self.in_flight]
        self.ring = self._open_ring(self._writing)
        position = self.ring.position
        if (None if position is None else position.mark) not in known:
            raise PartTaken(f"another release process has released up to {position} meanwhile")
        self._forget_up_to(position)

    def _open_ring(self, retry: BrokerRetry) -> Ring:
        """Open a ring that is not behind the last known commit. Raises ReadyLogLost if that commit is lost."""
        while True:
            self._beat.step()
            try:
                ring = Ring(self._settings, self._context.options, self._shard, self._topics, self._releases.add)
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)
                continue
            if self.position is None or (ring.position and ring.position.counts >= self.position.counts):
                return ring
            ring.close()
            place = f"{self._settings.position_topic}/{self._shard}"
            lost = f"{place} has lost the committed position {self.position}: its last position is {ring.position}"
            try:
                retry.wait(BrokerUnreachable(lost))
            except BrokerUnreachable as problem:
                if self._beat.stopping.is_set():
                    raise
                remedy = "If the topic is gone, run `delayline topics create`, and `delayline repair --ready-log`"
                raise ReadyLogLost(f"{lost}. Messages released since come a second time. {remedy}") from problem

    def _forget_up_to(self, position: Position | None) -> None:
        self.position = position
        marks = [planned.position.mark for planned in self.in_flight]
        if position is not None and position.mark in marks:
            self._writing.end()
            for _ in range(marks.index(position.mark) + 1):
                self.in_flight.popleft()
