"""Kafka's ids of topics: a topic that was deleted and made anew has another one."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from conf.errors import TopicMissing
from conf.kafka.clients import STARTING_S

_TIMEOUT_S, _PAUSE_S = 10.0, 0.1


def topic_id(options: Mapping[str, str], topic: str) -> str:
    """Return the id of `topic`. `options` are librdkafka's. Raises TopicMissing, KafkaException."""
    # Without the client's remarks when it is closed.
    client = AdminClient({**options, "log_level": "3"})
    known_by = time.monotonic() + STARTING_S
    while True:
        answer = client.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
        try:
            return str(answer.result().topic_id)
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            if time.monotonic() > known_by:
                raise TopicMissing(f"{topic} does not exist: create it with `delayline topics create`") from problem
        time.sleep(_PAUSE_S)
