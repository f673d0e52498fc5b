"""The consumer groups of an application: of its release processes, which share the shards, and of its forwarders."""

from __future__ import annotations

from dataclasses import dataclass

from conf.settings import Settings


@dataclass(frozen=True)
class Group:
    """A consumer group. Kafka divides the partitions of a topic between its members: each is a part of the work.

    - `process`, `parts`: what a member and the parts of the work are called
    - `command`: starts a member on its own
    """

    id: str
    topic: str
    process: str
    parts: str
    command: str


def release_group(settings: Settings) -> Group:
    """Return the group of the release processes: each partition of the ready topic is a shard."""
    return Group(
        f"{settings.application_id}-release", settings.ready_topic, "release process", "shards", "delayline release"
    )


def forward_group(settings: Settings) -> Group:
    """Return the group of the forwarders: each partition of the near topic, which has one for each shard, is a lane.

    The group does not use the claims topic. The first partition of that topic is not a lane, and a member could be
    assigned that partition alone.
    """
    return Group(f"{settings.application_id}-forward", settings.near_topic, "forwarder", "lanes", "delayline forward")
