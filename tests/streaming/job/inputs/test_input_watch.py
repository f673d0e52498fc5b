"""The input topics that a batch has read, against those that the job knows, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from conf.errors import CheckpointMismatch
from sinks.topics.topic_ids import input_ids
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from streaming.job.inputs.input_watch import InputWatch
from tests.conftest import MakeSettings, MakeTopic
from tests.eventually import assert_eventually


def test_a_batch_that_has_read_a_topic_that_was_created_again_is_refused(
    make_settings: MakeSettings, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    settings = make_settings(f"topics.input={topic}")
    known = {topic: [own] for topic, own in input_ids(settings).items()}
    watch = InputWatch(settings)
    origin = CheckpointOrigin("c", 1, 1)

    def batch(end: int) -> BatchSpan:
        return BatchSpan(origin, 7, 10, 20, {topic: {"0": 5}}, {topic: {"0": end}}, known)

    watch.check(batch(9))
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    assert_eventually(lambda: not input_ids(settings))
    # It was read before it was deleted.
    watch.check(batch(9))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    assert_eventually(lambda: input_ids(settings))
    # The batch has read nothing.
    watch.check(batch(5))
    for end in (9, 0):
        with pytest.raises(CheckpointMismatch, match=f"input topic {topic} was deleted and created again"):
            watch.check(batch(end))
