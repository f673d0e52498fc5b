"""The limits of topics, read from the brokers: which records they accept, and whether this login may write."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType

from conf.errors import BrokerUnreachable
from conf.kafka.clients import admin_client
from conf.kafka.error_codes import is_of_client, is_outage
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import write_barred
from conf.settings import Settings
from state.stub import MOST_STUB_BYTES

log = logging.getLogger(__name__)

NO_LIMIT = 2**31 - 1
# Kafka's value for "no limit".
ANY_AGE = 2**63 - 1
# The most bytes that a dead letter adds to the input record: its id, the error's code and sentence, a topic in each.
_DEAD_LETTER_BYTES = 4_096
# The most time that a marker of a broker is on its way to another one, or waits there.
_MARKER_AGE_MS = 1_000
_TIMEOUT_S = 10.0
_UNAUTHORIZED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


@dataclass(frozen=True)
class TopicLimits:
    """The limits of a topic: the most bytes of a record batch, whether a key is required, and which timestamps.

    A timestamp may be `max_age_ms` behind the broker's clock, and `max_ahead_ms` ahead of it. No broker says
    `shared_bytes`, the most bytes of a batch of several records: a writer learns it from refusals.
    """

    max_bytes: int = NO_LIMIT
    needs_key: bool = False
    max_age_ms: int = ANY_AGE
    max_ahead_ms: int = ANY_AGE
    shared_bytes: int = NO_LIMIT

    @property
    def ends_transactions(self) -> bool:
        """Whether transactions with records for the topic are sure to end.

        To end one, a broker writes a marker with a timestamp into each partition. If the topic finds it too old, the
        broker gives up (Kafka 4.1). No client can then end the transaction, or begin another one under its id.
        """
        return self.max_age_ms >= _MARKER_AGE_MS

    @property
    def batch_bytes(self) -> int:
        """The most bytes of a batch of several records, as far as is known."""
        return min(self.max_bytes, self.shared_bytes)


@dataclass(frozen=True)
class TopicAccess:
    """Whether a login may write to a topic, and how many `partitions` that has.

    `gone` is a topic that does not exist, `hidden` one that the login may not even describe, `barred` any other one
    that it may not write to.
    """

    kind: Literal["open", "gone", "hidden", "barred"]
    partitions: int = 0

    @property
    def open_partitions(self) -> int:
        """The number of partitions that the login may write to."""
        return self.partitions if self.kind == "open" else 0


def read_limits(options: Mapping[str, str], topics: Collection[str]) -> dict[str, TopicLimits]:
    """Return the limits of each of `topics`.

    A topic that does not exist, or that a broker does not describe to this login, counts as without limits. Raises
    KafkaException if no broker answers.
    """
    described = _describe(options, topics)
    return {
        topic: TopicLimits() if isinstance(configs, KafkaError) else _limits(configs)
        for topic, configs in described.items()
    }


def _limits(configs: Mapping[str, Any]) -> TopicLimits:
    has_producer_time = configs["message.timestamp.type"].value == "CreateTime"

    def timestamps(side: str) -> int:
        # Since Kafka 3.6.
        limit = configs.get(f"message.timestamp.{side}.max.ms")
        return int(limit.value) if limit and has_producer_time else ANY_AGE

    return TopicLimits(
        max_bytes=int(configs["max.message.bytes"].value),
        needs_key="compact" in configs["cleanup.policy"].value,
        max_age_ms=timestamps("before"),
        max_ahead_ms=timestamps("after"),
    )


def dead_letter_limits(settings: Settings) -> tuple[TopicLimits, int]:
    """Return the limits of the dead-letter topic, and the bytes that it must accept for any record of the input topics.

    Returns no limits and 0 if the broker does not describe the topics. Raises BrokerUnreachable.
    """
    dead_letter = settings.topics.dead_letter
    limits = _known_limits(settings, [*settings.topics.input, dead_letter])
    known = [limits[topic].max_bytes for topic in settings.topics.input if limits[topic].max_bytes != NO_LIMIT]
    return limits[dead_letter], max(max(known) + _DEAD_LETTER_BYTES, MOST_STUB_BYTES) if known else 0


def dead_letter_bytes(settings: Settings) -> int:
    """Return the largest record that the dead-letter topic takes whole with its error. Raises BrokerUnreachable."""
    topic = settings.topics.dead_letter
    return _known_limits(settings, [topic])[topic].max_bytes - _DEAD_LETTER_BYTES


def input_limits(settings: Settings) -> dict[str, TopicLimits]:
    """Return the limits of each input topic, as far as they are known. Raises BrokerUnreachable."""
    return _known_limits(settings, settings.topics.input)


def _known_limits(settings: Settings, topics: Collection[str]) -> dict[str, TopicLimits]:
    try:
        return read_limits(librdkafka_options(settings.kafka), topics)
    except KafkaException as problem:
        raise BrokerUnreachable(f"cannot read the configuration of topics: {problem}") from problem


def missing_topics(options: Mapping[str, str], topics: Collection[str]) -> list[str]:
    """Return the `topics` that do not exist. The request does not make a broker create them. Raises KafkaException."""
    return [
        topic
        for topic, configs in _describe(options, topics).items()
        if isinstance(configs, KafkaError) and configs.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    ]


def barred_topics(options: Mapping[str, str], topics: Collection[str]) -> list[str]:
    """Return the `topics` that the login can see but may not write to. Raises KafkaException."""
    return [topic for topic, access in topic_access(options, topics).items() if access.kind == "barred"]


def check_writable(settings: Settings, topics: Collection[str]) -> None:
    """Raise RightMissing if the login may not write to one of `topics`, BrokerUnreachable if no broker answers."""
    try:
        barred = barred_topics(librdkafka_options(settings.kafka), topics)
    except KafkaException as problem:
        raise BrokerUnreachable(f"cannot read the rights on topics: {problem}") from problem
    for topic in barred:
        raise write_barred(topic)


def topic_access(options: Mapping[str, str], topics: Collection[str]) -> dict[str, TopicAccess]:
    """Return the access of this login to each of `topics`. The request does not make a broker create them.

    A topic is left out if the broker's error says nothing about it. Raises KafkaException if no broker answers.
    """
    if not topics:
        return {}
    with admin_client(options, log) as client:
        answers = client.describe_topics(
            TopicCollection(sorted(topics)), include_authorized_operations=True, request_timeout=_TIMEOUT_S
        )
        found = {}
        for topic, answer in answers.items():
            try:
                described = answer.result()
            except KafkaException as problem:
                code = problem.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    found[topic] = TopicAccess("gone")
                elif code in _UNAUTHORIZED:
                    found[topic] = TopicAccess("hidden")
                elif not _is_of_topic(problem.args[0]):
                    raise
                continue
            allowed = described.authorized_operations
            # None from a broker before Kafka 2.3, which does not report it.
            may_write = allowed is None or AclOperation.WRITE in allowed
            found[topic] = TopicAccess("open" if may_write else "barred", len(described.partitions))
    return found


def _is_of_topic(error: KafkaError) -> bool:
    """Return whether a broker has answered with an error of a single topic. Otherwise no broker answers."""
    return error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART or not (is_of_client(error) or is_outage(error))


def _describe(options: Mapping[str, str], topics: Collection[str]) -> dict[str, Any]:
    """Return the configuration of each topic, or the KafkaError with which the broker answered."""
    if not topics:
        return {}
    with admin_client(options, log) as client:
        described: dict[str, Any] = {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
        for resource, answer in client.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
            try:
                described[resource.name] = answer.result()
            except KafkaException as problem:
                if not _is_of_topic(problem.args[0]):
                    raise
                described[resource.name] = problem.args[0]
    return described
