"""An application with two input topics, one of which is created again, and its checkpoint."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.topics.topic_ids import input_ids
from sinks.topics.topics import ensure_topics
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.switch_over import writer_of_birth
from streaming.storage.paths import buckets_path
from tests.conftest import MakeSettings
from tests.eventually import assert_eventually

TOPICS = ("changed", "other")


def settings_of_two(make_settings: MakeSettings, folder: Path) -> Settings:
    """Return settings of an application with two input topics, which exist, and its storage in `folder`."""
    named = make_settings(f"storage.path={folder}", "bucket.shards=2")
    names = ",".join(f"{named.application_id}-{topic}" for topic in TOPICS)
    settings = make_settings(
        f"storage.path={folder}", "bucket.shards=2", f"application_id={named.application_id}",
        f"topics.input={names}", "topics.skip_expired=true",
    )  # fmt: skip
    ensure_topics(settings, 1)
    return settings


def recreate(settings: Settings, partitions: int) -> str:
    """Delete the first input topic, create it again with `partitions`, and return its name."""
    topic = settings.topics.input[0]
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    assert_eventually(lambda: topic not in input_ids(settings))
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    assert_eventually(lambda: topic in input_ids(settings))
    return topic


def begin(spark: SparkSession, settings: Settings, origin: CheckpointOrigin) -> Checkpoint:
    """Begin a checkpoint of an existing table."""
    checkpoint = Checkpoint(spark, f"{settings.storage.path}/checkpoint")
    checkpoint.initialize(origin)
    BucketTable(spark, buckets_path(settings)).fence(writer_of_birth(origin.checkpoint))
    return checkpoint
