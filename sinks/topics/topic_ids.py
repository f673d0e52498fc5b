"""Kafka's ids of its cluster and of topics: a topic that was deleted and created again has another one."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from conf.errors import BrokerUnreachable, TopicMissing
from conf.kafka.client_log import client_log
from conf.kafka.clients import STARTING_S, admin_client
from conf.kafka.options import librdkafka_options
from conf.settings import Settings

log = logging.getLogger(__name__)

_TIMEOUT_S, _PAUSE_S = 10.0, 0.1


def topic_id(options: Mapping[str, str], topic: str) -> str:
    """Return the id of `topic`. `options` are librdkafka's. Raises TopicMissing, KafkaException."""
    known_by = time.monotonic() + STARTING_S
    ids = TopicIds(options)
    while not (found := ids.of([topic])):
        if time.monotonic() > known_by:
            raise TopicMissing(f"{topic} does not exist. Create it with `delayline topics create`")
        time.sleep(_PAUSE_S)
    return found[topic]


def input_ids(settings: Settings) -> dict[str, str]:
    """Return the id of each input topic that exists. Raises BrokerUnreachable."""
    try:
        return TopicIds(librdkafka_options(settings.kafka)).of(settings.topics.input)
    except KafkaException as problem:
        raise BrokerUnreachable(f"cannot read the ids of the input topics: {problem}") from problem


def cluster_id(settings: Settings) -> str | None:
    """Return the id of the Kafka cluster, or None if its brokers do not tell it. Raises BrokerUnreachable."""
    try:
        with admin_client(librdkafka_options(settings.kafka), log) as client:
            found: str = client.describe_cluster(request_timeout=_TIMEOUT_S).result().cluster_id
            return found or None
    except KafkaException as problem:
        raise BrokerUnreachable(f"cannot read the id of the cluster: {problem}") from problem


@dataclass(frozen=True)
class PresentTopic:
    """A topic as it is now: its id, and the number of its partitions."""

    id: str
    partitions: int


class TopicIds:
    """Asks brokers for the ids of topics, with one client for all calls."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are librdkafka's."""
        # Without the client's remarks when it is closed.
        self._client = AdminClient({**options, "log_level": "3"}, logger=client_log(log))

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Return the id of each of `topics` that exists. Raises KafkaException."""
        return {topic: each.id for topic, each in self.described(topics).items()}

    def described(self, topics: Collection[str]) -> dict[str, PresentTopic]:
        """Return the `topics` that exist. Raises KafkaException."""
        found = {}
        # It serves the client's callbacks: a token that has expired since the last call is fetched again.
        self._client.poll(0)
        answers = self._client.describe_topics(TopicCollection(sorted(topics)), request_timeout=_TIMEOUT_S)
        for topic, answer in answers.items():
            try:
                description = answer.result()
                found[topic] = PresentTopic(str(description.topic_id), len(description.partitions))
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        self._client.poll(0)
        return found
