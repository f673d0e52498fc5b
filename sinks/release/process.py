"""A release process: a member of the consumer group between whose members Kafka divides the shards.

Membership is static, so that a process that is restarted under its name has its shards at once. The group's consumer
reads nothing: each shard reads the ready log by itself (`sinks.release.shard`). The group decides who should release a
shard; fencing decides who can.

Two processes with one name. The later one fences the earlier one in the group, which ends. But a process also fences
itself: a broker that hangs while it joins may take its second try for another process. So a process that is fenced
joins again, once: if there are two, it is fenced once more, and ends.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conf.errors import BrokerUnreachable, ReleaseTaken
from conf.failpoints import failpoint
from conf.kafka.client_log import client_log
from conf.kafka.clients import admin_client
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sinks.release.counts import ReleaseCounts
from sinks.release.group import REFUSED_LIMIT_S, SESSION_MS, Refusals, group_id, strangers
from sinks.release.log_end import log_ends, unreleased
from sinks.release.shard import ReleaseContext, ShardRelease
from sinks.topics.topics import check_topics

log = logging.getLogger(__name__)

_POLL_S = 0.1
_HEARTBEAT_MS = 1_500
_METADATA_MS = 10_000
# A shard that another process took may come back, if the group still gives it to this process.
_RETAKE_S = 2.0
# The client reports that it is fenced as _FATAL, once.
_TAKEN = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}
# A process that is fenced so soon after it has joined again was replaced by another one.
_AGAIN_S = 60.0
_DELETE_EVERY_S = 30.0
_STRANGERS_EVERY_S = 15.0
_SURPLUS_EVERY_S = 5.0
_DELETE_TIMEOUT_S = 10.0
# A thread that wakes to end a transaction waits at most so long for one that computes.
_SWITCH_S = 0.0005


class ReleaseProcess:
    """Releases the shards that the group gives to this process.

    `assigned` are the numbers of these shards, `shards` those that are open, `counts` what was released, `member` is
    the name of the process. A partition of the ready topic beyond `bucket.shards`, as after a rescale to fewer shards,
    is a shard only if something lies there that is not released.
    """

    def __init__(self, settings: Settings, member: str, refused_limit_s: float = REFUSED_LIMIT_S) -> None:
        """`member` is the process's name in the group: of two with one name, the later one fences the other.

        `refused_limit_s` is for how long the group may refuse the process before it ends.

        Raises TopicMissing, TopicMismatch, RightMissing, BrokerUnreachable.
        """
        check_topics(settings)
        self._options: Mapping[str, str] = librdkafka_options(settings.kafka)
        self._ready_topic = settings.ready_topic
        self.counts = ReleaseCounts(settings.results_topic)
        self._settings = settings
        self._context = ReleaseContext(settings, member, self.counts)
        self.shards: dict[int, ShardRelease] = {}
        # When a shard that was taken by another process may be opened again, by the monotonic clock.
        self._retake_s: dict[int, float] = {}
        self.assigned: set[int] = set()
        # Partitions beyond `bucket.shards`, each with the offset below which nothing is left, and when that was read.
        self._surplus: dict[int, int] = {}
        self._surplus_s = -math.inf
        # The shards of other members of the group that are no release processes, by their names.
        self.strangers: Mapping[str, list[int]] = {}
        self._is_lost = False
        self._deleted: dict[int, int] = {}
        # By the monotonic clock, when the process last went on.
        self.polled_s = self._deleted_s = self._strangers_s = time.monotonic()
        # Until when, by the monotonic clock, being fenced means that another process has this one's name.
        self._replaced_until_s = -math.inf
        self.member = member
        self._group_id = group_id(settings)
        self.refusals = Refusals(self._group_id, member, refused_limit_s)
        self._on_joined: Callable[[], None] = lambda: None
        self._group = self._group_consumer()

    def _group_consumer(self) -> Consumer:
        return Consumer(
            {
                **self._options,
                "logger": client_log(log),
                "group.id": self._group_id,
                "group.instance.id": self.member,
                "client.id": self.member,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": _HEARTBEAT_MS,
                # So that partitions are seen soon that a rescale has added.
                "topic.metadata.refresh.interval.ms": _METADATA_MS,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
                "log_level": 2,
            }
        )

    def run(self, should_end: Callable[[ReleaseProcess], bool], on_joined: Callable[[], None] = lambda: None) -> None:
        """Release until `should_end`, which is asked several times a second. Call `on_joined` when the group takes it.

        Raises ReleaseTaken if another process of the same name takes its place, ReleaseRefused, RightMissing, and the
        errors of `ShardRelease`.
        """
        sys.setswitchinterval(_SWITCH_S)
        self._on_joined = on_joined
        self._join()
        try:
            while not should_end(self):
                self.polled_s = time.monotonic()
                self._poll_group()
                self._look_at_surplus()
                self._open_assigned()
                self._end_taken()
                self._delete_released()
                self._look_for_strangers()
        finally:
            self._leave()

    @property
    def drained(self) -> bool:
        """Whether all shards of this process are open, and nothing that they have read is pending.

        Not while it has lost its shards in an outage: it has them again afterwards, unless others took them.
        """
        is_open = self.shards.keys() == self.assigned and not self._is_lost
        return is_open and all(shard.drained for shard in self.shards.values())

    def _join(self) -> None:
        self._group.subscribe(
            [self._ready_topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _leave(self) -> None:
        self._close(list(self.shards))
        self._group.close()

    def _poll_group(self) -> None:
        message = self._group.poll(_POLL_S)
        error = None if message is None else message.error()
        if error is None:
            return
        if error.fatal() or error.code() in _TAKEN:
            if time.monotonic() < self._replaced_until_s:
                raise ReleaseTaken(
                    f"another release process with the name {self.member} has taken its place ({error.str()}). If "
                    "both are meant to run, give each its own name (delayline release --name)"
                )
            self._join_again()
            return
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise right_missing("Read", f"group {self._group_id}")
        self.refusals.note(error)

    def _join_again(self) -> None:
        log.warning("group %s takes %s for replaced; joining it again", self._group_id, self.member)
        self._leave()
        self.assigned.clear()
        self._surplus.clear()
        self._group = self._group_consumer()
        self._join()
        self._replaced_until_s = time.monotonic() + _AGAIN_S

    def _on_assign(self, group: Consumer, partitions: list[TopicPartition]) -> None:
        group.incremental_assign(partitions)
        group.pause(partitions)
        self._is_lost = False
        self.refusals.joined()
        on_joined, self._on_joined = self._on_joined, lambda: None
        on_joined()
        numbers = {partition.partition for partition in partitions}
        own = {number for number in numbers if number < self._settings.bucket.shards}
        self.assigned |= own
        self._surplus |= dict.fromkeys(numbers - own, 0)
        log.info("shards %s are given to %s", sorted(self.assigned), self.member)
        failpoint("shards-assigned")

    def _on_lost(self, group: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_lost = True
        self._on_revoke(group, partitions)

    def _on_revoke(self, group: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {partition.partition for partition in partitions}
        self.assigned -= gone
        for number in gone:
            self._surplus.pop(number, None)
        self._close([number for number in self.shards if number in gone])
        log.info("shards %s are taken from %s", sorted(gone), self.member)
        failpoint("shards-revoked")
        group.incremental_unassign(partitions)

    def _look_at_surplus(self) -> None:
        """Take the partitions beyond `bucket.shards` for shards in which something lies that is not released."""
        if not self._surplus or time.monotonic() < self._surplus_s + _SURPLUS_EVERY_S:
            return
        self._surplus_s = time.monotonic()
        try:
            ends = log_ends(self._options, self._ready_topic, self._surplus)
            changed = [number for number, end in ends.items() if end != self._surplus[number]]
            found = set(unreleased(self._settings, self._options, changed))
        except (KafkaException, BrokerUnreachable) as problem:
            # An outage, which the shards log.
            log.debug("the end of %s cannot be read: %s", self._ready_topic, problem)
            return
        self._surplus = {number: end for number, end in ends.items() if number not in found}
        if found:
            log.warning(
                "%s has records in shards %s beyond bucket.shards = %d, and they are released. If the job has more "
                "shards than that, start this process again with its settings",
                self._ready_topic, sorted(found), self._settings.bucket.shards,
            )  # fmt: skip
            self.assigned |= found

    def _open_assigned(self) -> None:
        new = [number for number in sorted(self.assigned - self.shards.keys()) if self._may_take(number)]
        for number in new:
            self.shards[number] = ShardRelease(self._context, number)
        if new:
            for shard in self.shards.values():
                shard.share_memory(len(self.shards))
        for number in new:
            self.shards[number].start()

    def _may_take(self, number: int) -> bool:
        return time.monotonic() >= self._retake_s.get(number, 0.0)

    def _end_taken(self) -> None:
        """Forget the shards that have ended. Raises the error of one."""
        for number, shard in list(self.shards.items()):
            if shard.ended.is_set():
                del self.shards[number]
                if shard.error is not None:
                    raise shard.error
                self._retake_s[number] = time.monotonic() + _RETAKE_S

    def _close(self, numbers: list[int]) -> None:
        """Stop shards, and wait until what they have written is aborted or committed."""
        for number in numbers:
            self.shards[number].stop()
        for number in numbers:
            self.shards.pop(number).join()

    def _look_for_strangers(self) -> None:
        """Look now and then whether Kafka has assigned shards to a consumer that is no release process, and warn."""
        if time.monotonic() - self._strangers_s < _STRANGERS_EVERY_S:
            return
        self._strangers_s = time.monotonic()
        try:
            found = strangers(self._options, self._group_id)
        except KafkaException as problem:
            # An outage, which the shards log.
            log.debug("group %s cannot be described: %s", self._group_id, problem)
            return
        for name in found.keys() - self.strangers.keys():
            log.warning(
                "consumer %s in group %s is no release process: it keeps shards %s from being released. Stop it",
                name, self._group_id, found[name],
            )  # fmt: skip
        self.strangers = found

    def _delete_released(self) -> None:
        """Delete what is released from the ready log, now and then."""
        if time.monotonic() - self._deleted_s < _DELETE_EVERY_S:
            return
        self._deleted_s = time.monotonic()
        ends = {number: shard.position.lowest for number, shard in self.shards.items() if shard.position is not None}
        ends = {number: end for number, end in ends.items() if end > self._deleted.get(number, 0)}
        partitions = [TopicPartition(self._ready_topic, number, end) for number, end in ends.items()]
        if not partitions:
            return
        try:
            with admin_client(self._options, log) as client:
                for answer in client.delete_records(partitions, request_timeout=_DELETE_TIMEOUT_S).values():
                    answer.result()
            self._deleted |= ends
        except KafkaException as problem:
            # It is tried again, and costs space until then.
            lacking = ", for which the login needs the right Delete there" if is_refusal(problem.args[0]) else ""
            log.warning("released records of %s could not be deleted%s: %s", self._ready_topic, lacking, problem)
