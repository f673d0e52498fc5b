"""Kafka's ids of topics: a topic that was deleted and made anew has another one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from conf.errors import TopicMissing
from conf.kafka.clients import STARTING_S, admin_client

log = logging.getLogger(__name__)

_TIMEOUT_S, _PAUSE_S = 10.0, 0.1


def topic_id(options: Mapping[str, str], topic: str) -> str:
    """Return the id of `topic`. `options` are librdkafka's. Raises TopicMissing, KafkaException."""
    known_by = time.monotonic() + STARTING_S
    # Without the client's remarks when it is closed.
    with admin_client({**options, "log_level": "3"}, log) as client:
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
