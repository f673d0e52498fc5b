"""The forwarding of one lane: read its input partitions, take what is due soon, hand it over with a claim on it.

`LaneForwarder._forward` tells the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException, Message

from conf.errors import BrokerUnreachable
from conf.failpoints import failpoint
from conf.kafka.error_codes import FENCED_ONCE
from conf.kafka.repeated_commit import SLOW_COMMITS_REMEDY
from conf.settings import Settings
from sinks.group.parts import PartThread
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.lanes.writer import LaneTaken, LaneWriter
from sinks.ready_log.stage import most_of_topics, ready_chunks
from sinks.release.wall_clock import now_ms
from sources.intake.consumed import records_of
from sources.intake.near import accept_near
from state.claims import JOB, Terms, check_uncut
from state.message import empty_messages
from state.order import in_order
from state.shards import by_shard
from streaming.forward.clock import check_clock
from streaming.forward.counts import ForwardCounts
from streaming.forward.inputs import Inputs, InputWatch
from streaming.forward.lane import Lane, Place, may_wait_s
from streaming.forward.lane_reader import MOST_BYTES, MOST_RECORDS, LaneReader

log = logging.getLogger(__name__)

# How long to wait for records at most, before the thread looks whether it must stop.
_POLL_S = 0.2
# How long to wait before looking again whether there is anything to do.
_IDLE_S = 0.5
# Records are taken so far apart: each time costs the same few milliseconds, however few they are. The longer pace is
# for few records, without messages that would be due within `release.lead` then. It begins so long after the last of
# these.
_PACE_S, _CALM_PACE_S = 0.02, 0.05
_CALM_AFTER_S, _FEW_RECORDS = 1.0, 2_000
# So long after a topic is created again, brokers may still tell the id of the one before.
_LEARN_S = 2.0
# After so many slow commits in a row there is a warning, but not more often than that.
_MANY_SLOW, _WARN_EVERY_S = 5, 60.0


@dataclass(frozen=True)
class ForwardContext:
    """The context that all lanes of a forwarder share. `member` is its name, `options` are librdkafka's."""

    settings: Settings
    member: str
    options: Mapping[str, str]
    watch: InputWatch
    counts: ForwardCounts


class LaneForwarder(PartThread):
    """Forwards one lane. If it is stopped, it completes the transaction that it writes.

    `is_reading` says whether it owns the lane and reads it, `behind` how many records it has not read, about, and
    `stepped_s` when it last went on (monotonic).
    """

    def __init__(self, context: ForwardContext, lane: int) -> None:
        super().__init__("lane", lane, self._forward_or_wait)
        self.lane = lane
        self.is_reading = False
        self.behind = 0
        self.stepped_s = time.monotonic()
        self._context = context
        self._settings = context.settings
        self._most_of_topics = most_of_topics(context.settings)
        self._retry = BrokerRetry(f"lane {lane}", self._settings.kafka.outage_limit, self._stopping.is_set)
        # Messages that the lane has taken and not written yet, and the latest clock by which it took them (epoch ms).
        self._taken: list[pa.Table] = []
        self._taken_ms = 0
        # When records were taken last, and when the longer pace was last not enough, by the monotonic clock.
        self._took_s = self._hurried_s = 0.0
        # How many commits in a row were slow, and when that was logged last, by the monotonic clock.
        self._slow, self._warned_s = 0, -_WARN_EVERY_S

    @property
    def is_idle(self) -> bool:
        """Whether the terms give the lane nothing to read: it has no input partition, or the lanes are closed."""
        inputs = self._context.watch.inputs
        return inputs.terms is not None and not inputs.of_lane(self.lane)

    @property
    def is_forwarding(self) -> bool:
        """Whether it reads the lane, or has nothing to read. After it was taken in vain, it must also have worked."""
        in_doubt = not self.has_worked and time.monotonic() < self.in_doubt_until_s
        return self.is_idle or (self.is_reading and not in_doubt)

    def _forward_or_wait(self) -> None:
        self.stepped_s = time.monotonic()
        try:
            self._forward()
        except (KafkaException, BrokerUnreachable) as problem:
            if isinstance(problem, KafkaException) and problem.args[0].code() in FENCED_ONCE:
                raise LaneTaken(f"Kafka aborted a transaction of this lane: {problem}") from problem
            if not self._stopping.is_set():
                self._retry.wait(problem)

    def _forward(self) -> None:
        """Forward until stopped, or until something has changed that decides what is forwarded.

        1. Fence earlier owners, and read the newest claim.
        2. Read the terms. Only now: whoever closes the lanes writes that first, and fences us then.
        3. Again and again: read, accept, write.

        The lane is left alone as long as the terms say that forwarders take nothing, or it has no claim of their epoch:
        the job may be about to write it. Raises LaneTaken; KafkaException and BrokerUnreachable, after which the newest
        claim says where to go on; CheckpointMismatch for a partition that was cut; the errors of topics that need an
        operator.
        """
        watch = self._context.watch
        # Looked up again before anything is fenced: that would disturb a job that has just closed the lanes.
        if not watch.inputs.of_lane(self.lane) or not watch.look().of_lane(self.lane):
            self._idle()
            return
        # 1. Fence, and read the claim.
        with closing(LaneWriter(self._settings, self._context.options, self.lane)) as writer:
            # 2. Read the terms.
            inputs = watch.look()
            terms, claim, places = inputs.terms, writer.claim, inputs.of_lane(self.lane)
            if terms is None or claim is None or claim.epoch != terms.epoch or not places:
                self._idle()
                return
            check_uncut(claim.cuts(terms.topic_ids))
            failpoint("lane-opened")
            lane, self._taken, self._taken_ms = Lane(claim, places, terms.topic_ids), [], 0
            log.info("lane %d: forwarding %s", self.lane, ", ".join(f"{topic}/{number}" for topic, number in places))
            if claim.owner == JOB:
                # The job learns that the lane has a forwarder again, also if no record comes.
                self._write(lane, writer, terms)
            # 3. Read, accept, write.
            with closing(LaneReader(self._settings, self._context.options)) as reader:
                reader.begin(lane)
                self.is_reading = True
                try:
                    while not self._stopping.is_set() and self._holds(inputs) and not writer.is_spent:
                        stuck = self._step(reader, lane, writer, terms)
                        if stuck and not self._resume(reader, lane, writer, stuck):
                            break
                finally:
                    self.is_reading = False

    def _idle(self) -> None:
        self._retry.end()
        self._stopping.wait(_IDLE_S)

    def _holds(self, inputs: Inputs) -> bool:
        return self._context.watch.inputs is inputs

    def _step(self, reader: LaneReader, lane: Lane, writer: LaneWriter, terms: Terms) -> set[Place]:
        """Take what has come, and write it with a claim once that is due. Return where the reader is stuck."""
        due_s = lane.claim_due_s
        self.stepped_s = begun_s = time.monotonic()
        self.behind = lane.lag
        is_calm = begun_s > self._hurried_s + _CALM_AFTER_S
        pause_s = self._took_s + (_CALM_PACE_S if is_calm else _PACE_S) - begun_s
        if pause_s > 0:
            time.sleep(pause_s)
        records, reached, stuck = reader.read(_POLL_S if due_s is None else max(0.0, due_s - begun_s))
        if self._skip_backlog(reader, lane, reached):
            records, reached = [], {}
        now_s = time.monotonic()
        if records:
            self._took_s = now_s
            self._take(lane, records, terms)
        for place, (position, leader_epoch) in reached.items():
            lane.read(place, position, now_s, leader_epoch)
        # A broker that answers readers may still refuse claims.
        if lane.has_nothing_to_claim:
            self._retry.end()
        due_s = lane.claim_due_s
        if due_s is not None and time.monotonic() >= due_s:
            self._write(lane, writer, terms)
        return stuck

    def _resume(self, reader: LaneReader, lane: Lane, writer: LaneWriter, stuck: Collection[Place]) -> bool:
        """Go on in partitions where the client cannot. Return False if the lane must be opened again instead.

        Either the records there were deleted unread, or the partition was cut: it ends below the position, or has other
        records below it, as the client knows by their leader epochs.

        Raises CheckpointMismatch if a partition was cut, and says so in a claim: the job must end too.
        """
        # The cut may lie below the end of the claims, or above it. Above it, nothing is wrong. The client can tell once
        # it begins at the position of a claim.
        if any(map(lane.has_read, stuck)):
            return False
        # A topic that was created again ends below the position too. Brokers learn of it one after the other.
        for pause_s in (0.0, _LEARN_S):
            self._stopping.wait(pause_s)
            if not {*stuck}.issubset(self._context.watch.look(for_terms=False).of_lane(self.lane)):
                return False
        firsts = {place: reader.first(place) for place in stuck}
        if cut := lane.resume(firsts, time.monotonic()):
            claim = lane.claim.found_cut(self._context.member, cut)
            writer.write(claim)
            check_uncut(claim.cuts(claim.topic_ids))
        reader.begin(lane)
        return True

    def _skip_backlog(self, reader: LaneReader, lane: Lane, reached: Mapping[Place, tuple[int, int]]) -> bool:
        """Leave what is there to the batches, unread, if the lane is too far behind. Return whether that is so."""
        for place, (position, _) in reached.items():
            lane.ends_at(place, max(reader.known_end(place), position))
        if not (backlog := lane.behind(time.monotonic())):
            return False
        # The client has told where the partitions end for readers of all records. An open transaction may hide some.
        for place in backlog:
            lane.ends_at(place, reader.end(place))
        if not (backlog := lane.behind(time.monotonic())):
            return False
        log.info("lane %d: leaving a backlog up to %s to the batches", self.lane, backlog)
        lane.skip(backlog, time.monotonic())
        reader.begin(lane)
        return True

    def _take(self, lane: Lane, records: list[Message], terms: Terms) -> None:
        """Accept `records`, and keep the messages that the lane takes of them."""
        readable, clock_ms = records_of(records), now_ms()
        if len(records) > _FEW_RECORDS:
            self._hurried_s = self._took_s
        messages, is_urgent = accept_near(readable, terms.settings, clock_ms, clock_ms + self._settings.clock.horizon)
        if is_urgent or readable.num_rows < len(records):
            lane.leave_urgent(self._took_s)
        if not messages.num_rows:
            return
        self._taken.append(messages)
        self._taken_ms = max(self._taken_ms, clock_ms)
        dues = pc.min_max(messages.column("deliver_at_ms")).as_py()
        if dues["min"] < clock_ms + self._settings.release.lead + _CALM_PACE_S * 1000:
            self._hurried_s = self._took_s
        is_full = (
            sum(each.num_rows for each in self._taken) >= MOST_RECORDS
            or sum(each.nbytes for each in self._taken) >= MOST_BYTES
        )
        wait_s = 0.0 if is_full else may_wait_s(dues["min"] - clock_ms)
        lane.take(_offsets(messages), due_before_ms=dues["max"] + 1, by_s=self._took_s + wait_s)

    def _write(self, lane: Lane, writer: LaneWriter, terms: Terms) -> None:
        """Write the messages that the lane has taken, in one transaction with its next claim."""
        clock_ms = now_ms()
        claim = lane.next_claim(self._context.member)
        taken = pa.concat_tables(self._taken) if self._taken else empty_messages()
        chunks = {
            shard: list(ready_chunks(own, clock_ms, most_of_topics=self._most_of_topics))
            for shard, own in by_shard(in_order(taken), terms.settings.shards)
        }
        shown_ms = max(self._taken_ms, clock_ms)
        writer.write(claim, chunks, partial(check_clock, shown_ms, limit_ms=self._settings.clock.skew_limit))
        self._retry.end()
        failpoint("near-claimed")
        lane.claimed(claim)
        self.has_worked |= taken.num_rows > 0
        self._taken, self._taken_ms = [], 0
        self._context.counts.claimed(self.lane, taken.num_rows, now_ms())
        self._slow = self._slow + 1 if writer.is_spent else 0
        if self._slow >= _MANY_SLOW and time.monotonic() > self._warned_s + _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            log.warning(
                "lane %d: opening the lane again after each claim, because the commits are slow and may have been sent "
                "twice. Messages are late by that time. %s",
                self.lane, SLOW_COMMITS_REMEDY,
            )  # fmt: skip


def _offsets(messages: pa.Table) -> dict[Place, list[int]]:
    """Return the offsets of `messages` by their partitions."""
    found: dict[Place, list[int]] = {}
    offsets, numbers = messages.column("offset").to_numpy(), messages.column("partition").to_numpy()
    for topic in messages.column("topic").unique().to_pylist():
        of_topic = np.asarray(pc.equal(messages.column("topic"), topic))
        for number in np.unique(numbers[of_topic]).tolist():
            found[topic, number] = offsets[of_topic & (numbers == number)].tolist()
    return found
