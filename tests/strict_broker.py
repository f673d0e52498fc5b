"""Fixtures with a strict broker: it grants few permissions, and allows only transactions shorter than the default."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from conf.kafka.jaas import LOGIN_MODULES, write_jaas
from conf.load import load_settings
from conf.settings import Settings
from sinks.topics.topics import ensure_topics
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.quick_java import quick_broker

# The password of each is its name.
USERS = ("guest", "job", "release", "forward", "publisher", "subscriber", "status", "topics")
_PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # The plain listener is for the node itself and for the tests' preparations.
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": write_jaas(
        LOGIN_MODULES["PLAIN"], {f"user_{user}": user for user in USERS}
    ),
    "transaction.max.timeout.ms": "20000",
}
_ANY = AclBindingFilter(
    ResourceType.ANY,
    cast(str, None),
    ResourcePatternType.ANY,
    cast(str, None),
    cast(str, None),
    AclOperation.ANY,
    AclPermissionType.ANY,
)
Entry = TypeVar("Entry", AclBinding, AclBindingFilter)
Allow = Callable[..., None]
LogInAs = Callable[..., list[str]]


@pytest.fixture(scope="session")
def strict(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The broker."""
    folder = tmp_path_factory.mktemp("strict")
    with quick_broker(folder, properties=_PROPERTIES, heap="512m", secured=["SASL_PLAINTEXT"]) as running:
        yield running


@pytest.fixture
def log_in_as(strict: EmbeddedBroker) -> LogInAs:
    """A function that returns the settings for `--set` by which a user logs in, or None as a user with all rights."""

    def overrides(user: str | None) -> list[str]:
        # Clients live on in the error of what failed, and would report for minutes that the broker is gone.
        silent = "kafka.log_level=0"
        if user is None:
            return [silent, f"kafka.bootstrap_servers={strict.bootstrap}"]
        return [
            silent,
            f"kafka.bootstrap_servers={strict.secured('SASL_PLAINTEXT')}",
            "kafka.security.protocol=SASL_PLAINTEXT",
            "kafka.sasl.mechanism=PLAIN",
            f"kafka.sasl.username={user}",
            f"kafka.sasl.password={user}",
        ]

    return overrides


@pytest.fixture
def names() -> list[str]:
    """The overrides that name a new application and its topics, and make its transactions short."""
    application_id = f"app-{uuid.uuid4().hex[:8]}"
    topics = [f"topics.{role}={application_id}-{role}" for role in ("input", "output", "dead_letter")]
    return [f"application_id={application_id}", *topics, "release.transaction_timeout=15s", "lease.period=5s"]


@pytest.fixture
def owner(names: list[str], log_in_as: LogInAs) -> Settings:
    """Settings of an application with its topics, for a user with all permissions."""
    settings = load_settings(None, [*names, *log_in_as(None)], environ={})
    ensure_topics(settings)
    return settings


@pytest.fixture
def guest(names: list[str], owner: Settings, log_in_as: LogInAs) -> Settings:
    """Settings of the same application, for a user without permissions."""
    return load_settings(None, [*names, *log_in_as("guest")], environ={})


def _each(
    form: Callable[..., Entry],
    names: Iterable[str],
    operations: Iterable[AclOperation],
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    user: str = "guest",
) -> list[Entry]:
    """Return an entry of access control for each name and operation."""
    return [
        form(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for name in names
        for operation in operations
    ]


@pytest.fixture
def allow(strict: EmbeddedBroker) -> Allow:
    """A function that gives a user permissions on topics or other resources: `allow([topic], AclOperation.READ)`."""
    client = AdminClient({"bootstrap.servers": strict.bootstrap, "log_level": "0"})

    def permit(names: list[str], *operations: AclOperation, **rest: Any) -> None:
        bindings = _each(AclBinding, names, operations, **rest)
        for done in client.create_acls(bindings).values():
            done.result()
        # The node's controller has the permissions by now; its broker gets them in a moment.
        assert_eventually(lambda: set(bindings) <= set(client.describe_acls(_ANY).result()))

    return permit


@pytest.fixture
def revoke(strict: EmbeddedBroker) -> Allow:
    """A function that takes permissions away again, with the arguments of `allow`."""
    client = AdminClient({"bootstrap.servers": strict.bootstrap, "log_level": "0"})

    def forbid(names: list[str], *operations: AclOperation, **rest: Any) -> None:
        filters = _each(AclBindingFilter, names, operations, **rest)
        for done in client.delete_acls(filters).values():
            done.result()
        assert_eventually(lambda: not any(client.describe_acls(each).result() for each in filters))

    return forbid
