"""Kafka's ids of topics: a topic that was deleted and made anew has another one."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from conf.errors import TopicMissing

_TIMEOUT_S = 10.0


def topic_id(options: Mapping[str, str], topic: str) -> str:
    """Return the id of `topic`. `options` are librdkafka's. Raises TopicMissing, KafkaException."""
    # Without the client's remarks when it is closed.
    client = AdminClient({**options, "log_level": "3"})
    answer = client.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
    try:
        return str(answer.result().topic_id)
    except KafkaException as problem:
        if problem.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"{topic} does not exist: create it with `delayline topics create`") from problem
        raise
