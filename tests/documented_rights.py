"""The rights that docs/platform/rights.md lists, as the access control of a broker takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType

from conf.settings import Settings
from sinks.topics.roles import needed_topics
from tests.docs.documents import ROOT

_ROW = re.compile(r"^\| (\w+) \| ([\w, ]+) \| (.+) \|$", re.MULTILINE)
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Delete": AclOperation.DELETE,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


@dataclass(frozen=True)
class Right:
    """One right of a login on one resource. `name` may be a prefix, by `pattern`."""

    login: str
    operation: str
    kind: ResourceType
    name: str
    pattern: ResourcePatternType = ResourcePatternType.LITERAL

    @property
    def acl_operation(self) -> AclOperation:
        """The operation as the client of a broker has it."""
        return _OPERATIONS[self.operation]


def documented_rights(settings: Settings) -> list[Right]:
    """Return the rights of the table, for the application of `settings`."""
    text = (ROOT / "docs/platform/rights.md").read_text()
    return [
        Right(login, operation, *resource)
        for login, operations, places in _ROW.findall(text)
        if login not in ("login", "---")
        for operation in operations.split(", ")
        for place in places.split(", ")
        for resource in _resources(place, settings)
    ]


def _resources(place: str, settings: Settings) -> Iterator[tuple[ResourceType, str, ResourcePatternType]]:
    named = place.replace("`", "").replace("<application_id>", settings.application_id)
    literal, roles = ResourcePatternType.LITERAL, needed_topics(settings)
    if place == "cluster":
        yield ResourceType.BROKER, "kafka-cluster", literal
    elif named.startswith("transactional ids that begin with "):
        yield ResourceType.TRANSACTIONAL_ID, named.rpartition(" ")[2], ResourcePatternType.PREFIXED
    elif named.startswith("group "):
        yield ResourceType.GROUP, named.removeprefix("group "), literal
    else:
        role = re.sub(r" topics?$", "", place).replace("dead-letter", "dead letter")
        assert role == "all" or role in roles.values(), place
        yield from ((ResourceType.TOPIC, name, literal) for name, its in roles.items() if role in ("all", its))
