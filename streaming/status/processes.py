"""The release processes and forwarders that run, from their consumer groups."""

from __future__ import annotations

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import right_named
from conf.settings import Settings
from sinks.group.groups import Group
from sinks.group.members import Member, members


def running_members(settings: Settings, group: Group) -> list[Member]:
    """Return the members of a group that run, by name. Raises BrokerUnreachable, RightMissing."""
    # Without the client's remarks when it is closed.
    options = {**librdkafka_options(settings.kafka), "log_level": "3"}
    try:
        with right_named("Describe", f"group {group.id}"):
            return members(options, group)
    except KafkaException as problem:
        raise BrokerUnreachable(f"cannot describe group {group.id}: {problem}") from problem
