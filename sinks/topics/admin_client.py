"""An admin client of kafka-python that turns Kafka's errors into Delayline's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.errors import KafkaConfigurationError, KafkaError, RetriableError

from conf.errors import BrokerUnreachable, RightMissing, SettingError
from conf.kafka.clients import check_clients
from conf.kafka.contact import check_contact
from conf.kafka.options import kafka_python_options
from conf.settings import Settings

CONNECT_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 15_000


@contextmanager
def connected(settings: Settings) -> Iterator[KafkaAdminClient]:
    """Yield an admin client for `settings.kafka`, and close it afterwards.

    Raises BrokerUnreachable within about `CONNECT_TIMEOUT_MS`, also if the connection is lost meanwhile; SettingError;
    and what `check_clients` and `check_contact` raise.
    """
    options: dict[str, Any] = {
        "client_id": settings.application_id,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        **kafka_python_options(settings.kafka),
        "bootstrap_timeout_ms": CONNECT_TIMEOUT_MS,
    }
    servers = settings.kafka.bootstrap_servers
    check_clients(settings)
    check_contact(settings.kafka)
    try:
        with KafkaAdminClient(**options) as admin:
            yield admin
    except KafkaConfigurationError as error:
        raise SettingError(f"[kafka]: {error}") from error
    except (RetriableError, OSError) as error:
        raise BrokerUnreachable(
            f"no broker answers at {servers} ({error}). Check that it runs, kafka.bootstrap_servers and "
            "kafka.security.protocol"
        ) from error
    except KafkaError as error:
        raise BrokerUnreachable(f"{servers} refused the request: {type(error).__name__}: {error}") from error


def topic_configs(admin: KafkaAdminClient, topics: Collection[str], keys: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the values of `keys` for each of `topics`, which must exist.

    Raises RightMissing if the broker hides them.
    """
    shown = shown_configs(admin, topics, keys)
    if hidden := [name for name in topics if not set(keys) <= shown[name].keys()]:
        raise RightMissing(
            f"the broker does not show {', '.join(keys)} of {', '.join(hidden)}. Grant the login of [kafka] "
            "the right DescribeConfigs there"
        )
    return shown


def shown_configs(admin: KafkaAdminClient, topics: Collection[str], keys: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the values of the `keys` that the broker has and shows, for each of `topics`, which must exist."""
    resources = [ConfigResource("TOPIC", name, list(keys)) for name in topics]
    described = admin.describe_configs(resources, config_filter="all")["topic"]
    # kafka-python returns a topic that the broker refuses to describe as one without configuration.
    found = {name: described.get(name, {}) for name in topics}
    return {name: {key: each[key]["value"] for key in keys if key in each} for name, each in found.items()}
