"""Who is in a consumer group, and who should not be."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from conf.kafka.clients import admin_client
from sinks.group.groups import Group

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Member:
    """A member of a group: its name, its host, and the numbers of the shards or lanes that it has.

    `is_stranger` says that it is not a process of Delayline. Such a process is a static member under its client's id.
    """

    name: str
    host: str
    numbers: list[int]
    is_stranger: bool


def members(options: Mapping[str, str], group: Group) -> list[Member]:
    """Return the members of `group`, by name. Raises KafkaException."""
    with admin_client(options, log) as client:
        described = client.describe_consumer_groups([group.id], request_timeout=_TIMEOUT_S)[group.id].result()
    found = [
        Member(
            member.client_id,
            member.host.lstrip("/"),
            sorted(partition.partition for partition in member.assignment.topic_partitions),
            member.group_instance_id != member.client_id,
        )
        for member in described.members
    ]
    return sorted(found, key=lambda member: member.name)


def strangers(options: Mapping[str, str], group: Group) -> dict[str, list[int]]:
    """Return the numbers assigned to members of `group` that are not processes of Delayline, by name and host.

    Raises KafkaException.
    """
    found = [member for member in members(options, group) if member.is_stranger]
    return {f"{member.name} at {member.host}": member.numbers for member in found}
