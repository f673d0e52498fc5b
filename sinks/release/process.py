"""A release process: a member of the consumer group that divides the shards between its members (`sinks.group`).

Each shard reads its logs by itself (`sinks.release.shard`). The group decides who should release a shard; fencing
decides who can.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import KafkaException, TopicPartition

from conf.errors import BrokerUnreachable
from conf.failpoints import failpoint
from conf.kafka.clients import admin_client
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal
from conf.settings import Settings
from sinks.group.groups import release_group
from sinks.group.member import GroupMember
from sinks.group.parts import Parts
from sinks.group.refusals import REFUSED_LIMIT_S
from sinks.internal_topics.position import Log, topics_of
from sinks.release.context import ReleaseContext
from sinks.release.counts import ReleaseCounts
from sinks.release.log_end import all_ends, unreleased
from sinks.release.shard import ShardRelease
from sinks.topics.topics import check_topics

log = logging.getLogger(__name__)

# This long after another process took a shard, this one may take it back.
_RETAKE_S = 2.0
_DELETE_EVERY_S = 30.0
_SURPLUS_EVERY_S = 5.0
_DELETE_TIMEOUT_S = 10.0
# A thread that wakes to end a transaction waits at most this long for a thread that computes.
_SWITCH_S = 0.0005


class ReleaseProcess:
    """Releases the shards that the group gives to this process.

    `assigned` has the numbers of these shards, `shards` the open ones, `counts` the released messages, and `group` its
    place in the group. A partition of the ready topic beyond `bucket.shards`, as after a rescale to fewer shards, is a
    shard only if it has messages that are not released.
    """

    def __init__(self, settings: Settings, member: str, refused_limit_s: float = REFUSED_LIMIT_S) -> None:
        """`member` is the process's name in the group: of two with one name, the later one fences the other.

        `refused_limit_s` is for how long the group may refuse the process before it ends.

        Raises TopicMissing, TopicMismatch, RightMissing, BrokerUnreachable.
        """
        check_topics(settings)
        self._options: Mapping[str, str] = librdkafka_options(settings.kafka)
        self._topics = topics_of(settings)
        self.counts = ReleaseCounts()
        self._settings = settings
        self._context = ReleaseContext(settings, member, self.counts)
        self.shards = Parts(partial(ShardRelease, self._context), _RETAKE_S)
        self.assigned: set[int] = set()
        # Partitions beyond `bucket.shards`, each with the offsets of its logs below which nothing is left, and when
        # that was read.
        self._surplus: dict[int, dict[Log, int]] = {}
        self._surplus_s = -math.inf
        self._deleted: dict[tuple[Log, int], int] = {}
        self._deleted_s = time.monotonic()
        self.group = GroupMember(
            release_group(settings), self._options, member, self._on_assign, self._on_revoke, refused_limit_s
        )

    def run(self, should_end: Callable[[ReleaseProcess], bool], on_joined: Callable[[], None] = lambda: None) -> None:
        """Release until `should_end`, which is asked several times a second. Call `on_joined` when the group takes it.

        Raises the errors of `GroupMember.poll` and of `ShardRelease`.
        """
        sys.setswitchinterval(_SWITCH_S)
        self.group.join(on_joined)
        try:
            while not should_end(self):
                self.group.poll()
                self._look_at_surplus()
                self._open_assigned()
                self.shards.forget_ended()
                self._delete_released()
        finally:
            self.group.leave()

    @property
    def drained(self) -> bool:
        """Whether all shards of this process are open, and nothing that they have read is pending.

        Not while it has lost its shards in an outage: it has them again afterwards, unless others took them.
        """
        is_open = self.shards.keys() == self.assigned and not self.group.is_lost
        return is_open and all(shard.drained for shard in self.shards.values())

    def _on_assign(self, numbers: set[int]) -> None:
        own = {number for number in numbers if number < self._settings.bucket.shards}
        self.assigned |= own
        self._surplus |= {number: {} for number in numbers - own}
        failpoint("shards-assigned")

    def _on_revoke(self, gone: set[int]) -> None:
        self.assigned -= gone
        for number in gone:
            self._surplus.pop(number, None)
        # Another process may have the shards once their transactions are aborted or committed.
        self.shards.close(gone)
        failpoint("shards-revoked")

    def _look_at_surplus(self) -> None:
        """Take the partitions beyond `bucket.shards` for shards in which something lies that is not released."""
        if not self._surplus or time.monotonic() < self._surplus_s + _SURPLUS_EVERY_S:
            return
        self._surplus_s = time.monotonic()
        try:
            ends = all_ends(self._settings, self._options, self._surplus)
            changed = [number for number, end in ends.items() if end != self._surplus[number]]
            found = set(unreleased(self._settings, self._options, changed))
        except (KafkaException, BrokerUnreachable) as problem:
            # An outage, which the shards log.
            log.debug("cannot read the end offsets of the logs of shards %s: %s", sorted(self._surplus), problem)
            return
        self._surplus = {number: end for number, end in ends.items() if number not in found}
        if found:
            log.warning(
                "shards %s are beyond bucket.shards = %d, but have records, which are released. If the job "
                "has more shards than that, restart this process with the job's settings",
                sorted(found), self._settings.bucket.shards,
            )  # fmt: skip
            self.assigned |= found

    def _open_assigned(self) -> None:
        new = self.shards.add(self.assigned)
        # Also if there are fewer than before.
        for shard in self.shards.values():
            shard.share_memory(len(self.shards))
        for shard in new:
            shard.start()

    def _delete_released(self) -> None:
        """Delete released records from the logs from time to time."""
        if time.monotonic() - self._deleted_s < _DELETE_EVERY_S:
            return
        self._deleted_s = time.monotonic()
        ends = {
            (name, number): shard.position.of(name).lowest
            for number, shard in self.shards.items()
            if shard.position is not None
            for name in Log
        }
        ends = {each: end for each, end in ends.items() if end > self._deleted.get(each, 0)}
        partitions = [TopicPartition(self._topics[name], number, end) for (name, number), end in ends.items()]
        if not partitions:
            return
        try:
            with admin_client(self._options, log) as client:
                for answer in client.delete_records(partitions, request_timeout=_DELETE_TIMEOUT_S).values():
                    answer.result()
            self._deleted |= ends
        except KafkaException as problem:
            # It is tried again, and costs space until then.
            lacking = " (the login lacks the right Delete there)" if is_refusal(problem.args[0]) else ""
            topics = " and ".join(sorted({partition.topic for partition in partitions}))
            log.warning("could not delete released records of %s%s: %s", topics, lacking, problem)
