"""Markers of a new checkpoint, written to a real broker."""

from __future__ import annotations

from confluent_kafka import Producer

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.internal_topics.progress import announce_origin, marker_key, read_progress
from sinks.topics.topics import ensure_topics
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually


def test_a_new_checkpoint_counts_on_from_what_each_shard_has_handed_over(make_settings: MakeSettings) -> None:
    settings = make_settings("bucket.shards=3")
    ensure_topics(settings)
    first, second = CheckpointOrigin("a", 1, 2), CheckpointOrigin("b", 2, 3)
    announce_origin(settings, first)
    # A commit is done before it is seen in all partitions.
    assert_eventually(lambda: _markers(settings) == [Progress(BatchSpan(first)), Progress(BatchSpan(first)), None], 60)
    producer = Producer(librdkafka_options(settings.kafka))
    last = Progress(BatchSpan(first, 7), 5, handed_over=90)
    producer.produce(settings.progress_topic, last.to_bytes(), marker_key(1), 1)
    assert producer.flush(30) == 0
    announce_origin(settings, second)
    expected = [Progress(BatchSpan(second), handed_over=count) for count in (0, 90, 0)]
    assert_eventually(lambda: _markers(settings) == expected, 60)


def _markers(settings: Settings) -> list[Progress | None]:
    return [read_progress(librdkafka_options(settings.kafka), settings.progress_topic, shard) for shard in range(3)]
