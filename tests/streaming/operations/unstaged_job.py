"""A job that has read messages, staged none, and lost its checkpoint; and its rebuild, which may be cut off."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin, marker_key
from sinks.topics.topic_ids import input_ids
from sinks.topics.topics import ensure_topics
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from streaming.checkpoint.current import current_checkpoint
from streaming.operations import rebuild
from streaming.storage.failures import translate_storage_errors

COUNT = 40
SHARDS = 4


class CutOff(Exception):
    """The process ends here."""


def cut_off(*_: Any) -> None:
    """End the process in place of a step."""
    raise CutOff


def publish(settings: Settings, topic: str, count: int) -> None:
    """Publish `count` messages that are due in an hour."""
    producer = Producer(librdkafka_options(settings.kafka))
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"%d" % number, 0, headers=[("deliver-after", b"3600000")])
    assert producer.flush(10) == 0


def read_without_staging(settings: Settings) -> None:
    """Let a job with the origin "one" read `COUNT` messages of each input topic. Its markers say so."""
    ensure_topics(settings, SHARDS)
    for topic in settings.topics.input:
        publish(settings, topic, COUNT)
    origin = CheckpointOrigin("one", 1, SHARDS, input_ids={each: [own] for each, own in input_ids(settings).items()})
    announce_origin(settings, origin)
    ends = {topic: {"0": COUNT} for topic in settings.topics.input}
    span = BatchSpan(origin, 0, ends=ends, input_ids=origin.input_ids)
    producer = Producer(librdkafka_options(settings.kafka))
    for shard in range(SHARDS):
        producer.produce(settings.progress_topic, Progress(span).to_bytes(), marker_key(shard), shard)
    assert producer.flush(10) == 0


def rebuilt(spark: SparkSession, settings: Settings, store: BucketTable, lease: HeldLease) -> None:
    """Rebuild the checkpoint."""
    with translate_storage_errors(settings):
        rebuild._rebuild(store, settings, current_checkpoint(spark, settings), time.time_ns() // 1_000_000, lease)
