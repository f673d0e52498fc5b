"""A process in its consumer group: which shards or lanes it should have."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conf.errors import NameTaken
from conf.kafka.client_log import client_log
from conf.kafka.rights import right_missing
from sinks.group.groups import Group
from sinks.group.members import strangers
from sinks.group.refusals import REFUSED_LIMIT_S, SESSION_MS, Refusals

log = logging.getLogger(__name__)

_POLL_S = 0.1
_HEARTBEAT_MS = 1_500
_METADATA_MS = 10_000
# The client reports that it is fenced as _FATAL, once.
_TAKEN = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}
# A process that is fenced so soon after it has joined again was replaced by another one.
_AGAIN_S = 60.0
_STRANGERS_EVERY_S = 15.0


class GroupMember:
    """A static member of a group. All methods and callbacks run in the thread that calls `poll`.

    The public attributes are what `poll` finds out:

    - `numbers`: the shards or lanes that the group assigns to this process
    - `is_lost`: whether it has lost them in an outage; it has them again afterwards, unless others took them
    - `refusals`: what keeps it out of its group
    - `strangers`: the numbers assigned to members that are not processes of Delayline, by the names of these members
    - `polled_s`: when the process last asked its group, by the monotonic clock
    """

    def __init__(
        self,
        group: Group,
        options: Mapping[str, str],
        name: str,
        on_assign: Callable[[set[int]], None],
        on_revoke: Callable[[set[int]], None],
        refused_limit_s: float = REFUSED_LIMIT_S,
    ) -> None:
        """Prepare the membership of the process `name`: of two with one name, the later one fences the other.

        `on_assign` is called with numbers that the process has from now on, `on_revoke` with those that it no longer
        has once it returns: another process may have them at once. It may name some that the process never had.
        `refused_limit_s` is for how long the group may refuse the process before `poll` raises.
        """
        self.name = name
        self.numbers: set[int] = set()
        self.is_lost = False
        self.refusals = Refusals(group, name, refused_limit_s)
        self.strangers: Mapping[str, list[int]] = {}
        self.polled_s = self._strangers_s = time.monotonic()
        self._group, self._options = group, options
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._on_joined: Callable[[], None] = lambda: None
        # Until when, by the monotonic clock, being fenced means that another process has this one's name.
        self._replaced_until_s = -math.inf
        self._consumer = self._new_consumer()

    def join(self, on_joined: Callable[[], None] = lambda: None) -> None:
        """Ask the group for a place. Once it takes this process, `poll` calls `on_joined`."""
        self._on_joined = on_joined
        self._subscribe()

    def poll(self) -> None:
        """Let the group assign and revoke, for a tenth of a second.

        Raises NameTaken if another process of the same name has taken the place of this one, MembershipRefused,
        RightMissing, and what the callbacks raise.
        """
        self.polled_s = time.monotonic()
        message = self._consumer.poll(_POLL_S)
        error = None if message is None else message.error()
        if error is not None:
            self._note(error)
        self._look_for_strangers()

    def leave(self) -> None:
        """Give back all that the process has. The group keeps its place for as long as a restart takes."""
        self._give_back(set(self.numbers))
        self._consumer.close()

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                **self._options,
                "logger": client_log(log),
                "group.id": self._group.id,
                "group.instance.id": self.name,
                "client.id": self.name,
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

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            [self._group.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _note(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _TAKEN:
            if time.monotonic() < self._replaced_until_s:
                raise NameTaken(
                    f"another {self._group.process} has taken the name {self.name} ({error.str()}). If both "
                    f"should run, give each its own name ({self._group.command} --name)"
                )
            self._join_again()
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise right_missing("Read", f"group {self._group.id}")
        else:
            self.refusals.note(error)

    def _join_again(self) -> None:
        log.warning("group %s considers %s replaced; joining it again", self._group.id, self.name)
        self.leave()
        self._consumer = self._new_consumer()
        self._subscribe()
        self._replaced_until_s = time.monotonic() + _AGAIN_S

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        self.is_lost = False
        self.refusals.joined()
        on_joined, self._on_joined = self._on_joined, lambda: None
        on_joined()
        new = _numbers(partitions)
        self.numbers |= new
        log.info("group assigned %s %s to %s", self._group.parts, sorted(self.numbers), self.name)
        self._on_assign(new)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.is_lost = True
        self._revoked(consumer, partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_back(_numbers(partitions))
        consumer.incremental_unassign(partitions)

    def _give_back(self, gone: Collection[int]) -> None:
        self.numbers.difference_update(gone)
        self._on_revoke(set(gone))
        log.info("group revoked %s %s from %s", self._group.parts, sorted(gone), self.name)

    def _look_for_strangers(self) -> None:
        """Check from time to time whether Kafka has assigned parts to a foreign consumer, and warn."""
        if time.monotonic() - self._strangers_s < _STRANGERS_EVERY_S:
            return
        self._strangers_s = time.monotonic()
        try:
            found = strangers(self._options, self._group)
        except KafkaException as problem:
            # This is an outage. The parts that read and write log more about it.
            log.debug("cannot describe group %s: %s", self._group.id, problem)
            return
        for name in found.keys() - self.strangers.keys():
            log.warning(
                "consumer %s in group %s is not a %s. Nobody works on %s %s until it is stopped. Stop it",
                name, self._group.id, self._group.process, self._group.parts, found[name],
            )  # fmt: skip
        self.strangers = found


def _numbers(partitions: list[TopicPartition]) -> set[int]:
    return {partition.partition for partition in partitions}
