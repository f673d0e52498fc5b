"""How many partitions topics have, and which topics the job may write messages to."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from kafka.admin import ACLOperation, KafkaAdminClient
from kafka.errors import AuthorizationError, for_code

from conf.errors import RightMissing
from conf.settings import Settings
from sinks.topics.admin_client import connected
from sinks.topics.roles import needed_topics, required_topics
from state.checkpoint.batch_settings import is_listed

log = logging.getLogger(__name__)


def partition_counts(settings: Settings, topics: Collection[str] | None = None) -> dict[str, int]:
    """Return the partition count of each of `topics`, without those that do not exist.

    None means every topic to which the job may write messages: the output topic, the dead-letter topic, the results
    topic, and the topics that the allow-list has, but never the job's input and internal topics.

    Raises RightMissing if the broker hides whether a required topic exists. Raises BrokerUnreachable.
    """
    with connected(settings) as admin:
        if topics is None:
            return counts_of(_possible_outputs(admin, settings))
        return counts_of(describe(admin, topics, required_topics(settings)))


def offered_topics(settings: Settings) -> dict[str, int]:
    """Return the partition count of every topic to which the job may write messages, as it is when the job starts.

    Like `partition_counts`, but without the topics that this login may not write to, according to the broker. These
    topics are logged. Raises the errors of `partition_counts`.
    """
    with connected(settings) as admin:
        described = _possible_outputs(admin, settings)
    required = required_topics(settings)
    # With `release.processes` of 0 another login writes. Its rights are not known here.
    barred = [each["name"] for each in described if settings.release.processes and _is_barred(each)]
    if barred := [name for name in barred if name not in required]:
        log.warning(
            "the login of [kafka] may not write to %s. Messages for it become dead letters (topic-unknown) "
            "until the next start",
            ", ".join(barred),
        )
    return {name: count for name, count in counts_of(described).items() if name not in barred}


def _writable(settings: Settings, names: Collection[str]) -> list[str]:
    written = (settings.topics.output, settings.topics.dead_letter, settings.results_topic)
    listed = (*written, *settings.topics.allowed_outputs)
    # A message sent to an input topic still has its delay header, and would loop forever.
    barred = {*settings.topics.input, *settings.own_topics}
    return [name for name in names if name not in barred and is_listed(name, listed)]


def _names(admin: KafkaAdminClient) -> list[str]:
    return sorted(name for name in admin.list_topics() if not name.startswith("__"))


def describe(
    admin: KafkaAdminClient, topics: Collection[str], required: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return the broker's description of each of `topics` that exists and that it shows.

    Raises RightMissing if it hides one that is `required`: any of them by default.
    """
    # The client takes an empty list for "all topics".
    described: list[dict[str, Any]] = admin.describe_topics(list(topics)) if topics else []
    problems = {topic["name"]: for_code(topic["error_code"]) for topic in described}
    hidden = [name for name, problem in problems.items() if issubclass(problem, AuthorizationError)]
    if hidden := [name for name in hidden if required is None or name in required]:
        raise RightMissing(
            f"the broker hides whether {', '.join(hidden)} exists. Grant the login of [kafka] the right Describe there"
        )
    return [topic for topic in described if topic["error_code"] == 0]


def _possible_outputs(admin: KafkaAdminClient, settings: Settings) -> list[dict[str, Any]]:
    # Also the topics that the settings name: the listing leaves out names that begin like Kafka's own.
    names = _writable(settings, sorted({*_names(admin), *needed_topics(settings)}))
    return describe(admin, names, required_topics(settings))


def counts_of(described: list[dict[str, Any]]) -> dict[str, int]:
    """Return the partition counts of topics that a broker has described."""
    return {topic["name"]: len(topic["partitions"]) for topic in described}


def _is_barred(described: dict[str, Any]) -> bool:
    """Return whether a broker has said that the login may not write to a topic."""
    # Describe is among them, or the broker reports none, as before Kafka 2.3.
    allowed: list[str] = described.get("authorized_operations") or []
    return bool(allowed) and ACLOperation.WRITE.name not in allowed
