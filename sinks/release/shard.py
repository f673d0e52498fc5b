"""The release of one shard: read its two logs, plan, and write each transaction ahead of its time.

`ShardRelease._release` has the steps. They run in a thread. The ring has another thread, which ends transactions.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from sinks.group.parts import PartThread
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.position import Position
from sinks.release.context import ReleaseContext
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.log_reader import LogReader
from sinks.release.near_end import NearEnd
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.releases import Releases
from sinks.release.ring import PRODUCERS, ClockSetBack
from sinks.release.room import Limits
from sinks.release.shard_beat import ShardBeat
from sinks.release.shard_rates import ShardRates
from sinks.release.shard_writer import ShardWriter
from sinks.release.wall_clock import now_ms

log = logging.getLogger(__name__)

# How long to wait for records of the logs at most, before the thread looks whether it must stop.
_POLL_S = 0.2
# The same while the broker is asked where a log ends.
_ANSWER_S = 0.005
# After this long without a read error, the next one begins another outage: a shard without records has no other sign
# that the previous outage is over.
_QUIET_S = 60.0
# Uncommitted transactions may use this share of a shard's memory, chunks the rest.
_SHARE_OF_TRANSACTIONS = 0.25
# How much later than planned now the last transaction may end, until the clock counts as set back.
_SET_BACK_MS = 1_000
# How much later than the last read a plan may be made: more may be staged by then that is due before.
_KNOWN_MS = 20


@dataclass(frozen=True)
class Backlog:
    """The messages staged and not released: about how many, and when the first is due (epoch ms), if any."""

    messages: int = 0
    next_due_ms: int | None = None


class ShardRelease(PartThread):
    """Releases one shard. If it is stopped, it aborts transactions that are not due.

    `drained` says whether no message that was read is pending, `backlog` how many were pending a second ago. It holds
    the parts that the steps of `_release` use, the times of that loop, and its share of the memory.
    """

    def __init__(self, context: ReleaseContext, shard: int) -> None:
        super().__init__("shard", shard, self._release)
        self.shard = shard
        self.drained = False
        self.backlog = Backlog()
        self._settings, self._waits = context.settings, context.waits
        self._options = context.options
        self._beat = ShardBeat(shard, context.settings.kafka.outage_limit, self._stopping)
        self._rates = ShardRates(context, shard, self._beat)
        self._releases = Releases(context)
        self._writer = ShardWriter(context, shard, self._beat, self._rates, self._releases)
        self._near_end = NearEnd(self._settings, self._options, shard)
        # When the backlog was counted last, and when something was pending last, by the monotonic clock.
        self._counted_s = self._busy_s = 0.0
        # The retries of reading, and when it failed last, by the monotonic clock.
        self._reading: BrokerRetry | None = None
        self._read_failed_s = 0.0
        self.share_memory(1)

    def share_memory(self, shards: int) -> None:
        """Set between how many shards the memory of the process is divided."""
        release = self._settings.release
        share = release.max_bytes // shards
        self._most_pending_bytes = int(share * (1 - _SHARE_OF_TRANSACTIONS))
        self._most_transaction_bytes = int(share * _SHARE_OF_TRANSACTIONS) // PRODUCERS

    @property
    def position(self) -> Position | None:
        """The newest position that is known to be committed."""
        return self._writer.position

    @property
    def releasing(self) -> bool:
        """Whether messages go out: the logs were read to their ends, and the shard waits for no broker."""
        return self._beat.releasing

    @property
    def still_s(self) -> float:
        """For how long one of the two threads has not gone on, in s: filling, or ending a transaction.

        A wait goes on: for messages, for a rate, or for brokers between two tries. One try may take as long as the
        client allows, such as `release.transaction_timeout`.
        """
        return self._beat.still_s(self._writer.ring)

    def _release(self) -> None:
        """Release until stopped, or until the clock is set back.

        1. Open the ring, which fences all others, and read the position.
        2. Read both logs from there to their ends: the last record may have the first message that is due.
        3. Again and again: take in new records, plan the messages due within the lead, and write them. If that took
           long, first read up to the ends again.

        After the clock was set back, everything starts again at 1: new messages may be due before messages that were
        written ahead.

        Raises PartTaken; BrokerUnreachable after `kafka.outage_limit`; the errors of the logs and of topics that
        need an operator.
        """
        self._rates.read()
        # 1. Open the ring.
        self._writer.open()
        try:
            # From now on no other process takes messages out for requests.
            started_ms = now_ms()
            # 2. Read up to the ends.
            with self._open_reader() as reader:
                pending = Pending(self._first_position(reader, started_ms), started_ms, self._releases.recent.find)
                while not reader.at_end and not self._stopping.is_set():
                    self._beat.step()
                    self._take(reader, pending, _POLL_S)
                    self._count(pending)
                log.info("shard %d: released up to %s", self.shard, reader.position)
                # 3. Take in, plan and write.
                while not self._stopping.is_set():
                    self._beat.releasing = True
                    self._beat.step()
                    self._writer.settle()
                    self._rates.read_if_reopened()
                    next_ms = pending.next_due_ms
                    self.drained = pending.merge.is_empty and not self._writer.in_flight
                    self._count(pending)
                    most_s = _POLL_S if reader.at_end and not pending.incoming.needs_near_end else _ANSWER_S
                    early_ms = most_s * 1000 if next_ms is None else next_ms - self._settings.release.lead - now_ms()
                    self._take(reader, pending, min(max(early_ms, 0) / 1000, most_s))
                    planned = (self._plan(reader, pending) or self._past_end(pending)) if reader.at_end else None
                    self._writer.write(planned, pending.merge.needs)
        except ClockSetBack:
            log.warning(
                "shard %d: this host's clock was set back. Messages wait until the clock reaches their due time again",
                self.shard,
            )
        finally:
            self._beat.releasing = False
            self._writer.close()

    def _open_reader(self) -> LogReader:
        retry = self._beat.retry()
        while True:
            try:
                return LogReader(self._settings, self._options, self.shard, self.position)
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(problem)

    def _first_position(self, reader: LogReader, started_ms: int) -> Position:
        """Return where to go on, given when this process has opened the ring (epoch ms)."""
        position = reader.position
        if position.below is not None and position.below.deliver_at_ms > started_ms:
            log.warning(
                "shard %d: messages up to %s were released by a clock that was ahead", self.shard, reader.position
            )
            # Otherwise all messages that are due before would count as late, and go out together.
            return position.set_back()
        return position

    def _take(self, reader: LogReader, pending: Pending, timeout_s: float) -> None:
        """Add new records to `pending`. Wait for them up to `timeout_s`."""
        try:
            for place, summary, payload in reader.read(timeout_s):
                pending.add(place, summary, payload)
                self._limit(pending)
                self._reading = None
            pending.incoming.reach(reader.ends)
            self._near_end.look(pending.incoming)
        except KafkaException as problem:
            if self._reading is None or time.monotonic() > self._read_failed_s + _QUIET_S:
                self._reading = self._beat.retry()
            self._reading.wait(problem)
            self._read_failed_s = time.monotonic()

    def _limit(self, pending: Pending) -> None:
        pending.merge.max_bytes = self._most_pending_bytes
        if pending.merge.nbytes > pending.merge.max_bytes:
            pending.merge.shrink()

    def _limits(self, clock_ms: int) -> Limits:
        release = self._settings.release
        return Limits(
            release.transaction_messages,
            self._most_transaction_bytes,
            release.slice,
            self._rates.limiter.most_at_once,
            partial(self._writer.topics.goes_to, clock_ms=clock_ms),
        )

    def _plan(self, reader: LogReader, pending: Pending) -> Planned | None:
        """Return the next transaction, or None if none is due within the lead, or if the thread is to stop.

        Raises ClockSetBack if messages that are planned already are due much later than that.
        """
        retry = self._beat.retry()
        release = self._settings.release
        while not self._stopping.is_set():
            # Not the present: this process may be paused at any time, or read payloads again.
            clock_ms = min(now_ms(), reader.read_ms + _KNOWN_MS)
            below = pending.position.below
            if below is not None and below.deliver_at_ms > clock_ms + release.lead + release.slice + _SET_BACK_MS:
                raise ClockSetBack
            try:
                return pending.plan(clock_ms, clock_ms + release.lead, self._limits(clock_ms))
            except PayloadMissing as missing:
                # Payloads that are read again for requests are needed once, and may take more than the room left.
                self._limit(pending)
                try:
                    for place, payload in reader.read_again(missing.places):
                        pending.merge.chunks.restore(place, payload)
                    self._beat.step()
                except (KafkaException, BrokerUnreachable) as problem:
                    retry.wait(problem)
        return None

    def _past_end(self, pending: Pending) -> Planned | None:
        """Return a transaction that says that the logs are released to their ends, some time after the last one."""
        now_s = time.monotonic()
        if not self.drained:
            self._busy_s = now_s
        return pending.past() if now_s > self._busy_s + self._waits.idle else None

    def _count(self, pending: Pending) -> None:
        """Count the backlog, and free the memory of released messages, once a second."""
        if time.monotonic() - self._counted_s >= self._waits.count:
            self._counted_s = time.monotonic()
            self._releases.recent.settle(now_ms())
            in_flight = self._writer.in_flight
            due_ms = in_flight[0].last_due_ms if in_flight else pending.next_due_ms or None
            written = sum(planned.messages.num_rows for planned in in_flight)
            self.backlog = Backlog(pending.merge.messages + written, due_ms)
