"""The consumer groups of an application: of its release processes, which share the shards, and of its forwarders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conf.settings import Settings
from state.claims import partition_of_lane


@dataclass(frozen=True)
class Group:
    """A consumer group between whose members Kafka divides the partitions of a topic, and with them the work.

    - `first`: the partition of the part of number 0; those before it are nobody's work
    - `process`, `parts`: what a member and the parts of the work are called
    - `command`: starts a member on its own
    """

    id: str
    topic: str
    process: str
    parts: str
    command: str
    first: int = 0

    def numbers(self, partitions: Iterable[int]) -> list[int]:
        """Return the numbers of the parts that the topic's `partitions` stand for, ascending."""
        return sorted(partition - self.first for partition in partitions if partition >= self.first)


def release_group(settings: Settings) -> Group:
    """Return the group of the release processes: each partition of the ready topic is a shard."""
    return Group(
        f"{settings.application_id}-release", settings.ready_topic, "release process", "shards", "delayline release"
    )


def forward_group(settings: Settings) -> Group:
    """Return the group of the forwarders: each partition of the claims topic is a lane, but the one with the terms."""
    return Group(
        f"{settings.application_id}-forward",
        settings.claims_topic,
        "forwarder",
        "lanes",
        "delayline forward",
        first=partition_of_lane(0),
    )
