"""How large a record each topic takes, as the brokers say it now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from conf.errors import BrokerUnreachable
from conf.kafka_options import librdkafka_options
from conf.settings import Settings

NO_LIMIT = 2**31 - 1
# What a dead letter may take more than the record that came in: its id, the error's code and sentence, a topic in each.
_DEAD_LETTER_BYTES = 4_096
_TIMEOUT_S = 10.0
_SETTING = "max.message.bytes"
# What says something of one topic. Any other error says that no broker answers.
_OF_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


def read_limits(options: Mapping[str, str], topics: Collection[str]) -> dict[str, int]:
    """Return max.message.bytes of each of `topics`, in bytes of a record batch.

    NO_LIMIT for one that does not exist, or that may not be described. Raises KafkaException if no broker answers.
    """
    described = _describe(options, topics)
    return {
        topic: NO_LIMIT if isinstance(configs, KafkaError) else int(configs[_SETTING].value)
        for topic, configs in described.items()
    }


def dead_letter_limits(settings: Settings) -> tuple[int, int]:
    """Return max.message.bytes of the dead-letter topic, and what it takes to hold any record of the input topics.

    NO_LIMIT and 0 for what cannot be told. Raises BrokerUnreachable.
    """
    dead_letter = settings.topics.dead_letter
    limits = _known_limits(settings, [*settings.topics.input, dead_letter])
    known = [limits[topic] for topic in settings.topics.input if limits[topic] != NO_LIMIT]
    return limits[dead_letter], max(known) + _DEAD_LETTER_BYTES if known else 0


def input_limits(settings: Settings) -> dict[str, int]:
    """Return max.message.bytes of each input topic, NO_LIMIT where it cannot be told. Raises BrokerUnreachable."""
    return _known_limits(settings, settings.topics.input)


def _known_limits(settings: Settings, topics: Collection[str]) -> dict[str, int]:
    try:
        return read_limits(librdkafka_options(settings.kafka), topics)
    except KafkaException as problem:
        raise BrokerUnreachable(f"the topics' max.message.bytes cannot be read: {problem}") from problem


def missing_topics(options: Mapping[str, str], topics: Collection[str]) -> list[str]:
    """Return those of `topics` that do not exist, and let no broker create one. Raises KafkaException."""
    return [
        topic
        for topic, configs in _describe(options, topics).items()
        if isinstance(configs, KafkaError) and configs.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    ]


def _describe(options: Mapping[str, str], topics: Collection[str]) -> dict[str, Any]:
    """Return the configuration of each topic, or the KafkaError that the broker gives in its place."""
    if not topics:
        return {}
    client = AdminClient(dict(options))
    found: dict[str, Any] = {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
    for resource, answer in client.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
        try:
            found[resource.name] = answer.result()
        except KafkaException as problem:
            if problem.args[0].code() not in _OF_TOPIC:
                raise
            found[resource.name] = problem.args[0]
    return found
