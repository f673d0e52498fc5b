"""Kafka's ids of topics, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from conf.errors import TopicMissing
from conf.kafka.options import librdkafka_options
from sinks.topics.topic_ids import TopicIds, input_ids, topic_id
from tests.conftest import MakeSettings, MakeTopic
from tests.eventually import assert_eventually


def test_a_topic_that_was_created_again_has_another_id(make_settings: MakeSettings, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    settings = make_settings(f"topics.input={topic},{topic}-missing")
    options = librdkafka_options(settings.kafka)
    # One client for all calls.
    ids = TopicIds(options)
    before = ids.of([topic])
    assert before == input_ids(settings) == {topic: topic_id(options, topic)}
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    assert_eventually(lambda: not ids.of([topic, f"{topic}-missing"]))
    with pytest.raises(TopicMissing, match=f"{topic} does not exist"):
        topic_id(options, topic)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    assert_eventually(lambda: ids.of([topic]))
    assert ids.of([topic]) != before
