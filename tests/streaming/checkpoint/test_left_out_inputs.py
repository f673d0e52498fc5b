"""Starts with other input topics than before: left out, back again, or of another Kafka cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import read_markers
from sinks.topics.topic_ids import input_ids
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.recovery import Recovered, recover
from streaming.job.unfinished_batch import check_input
from tests.conftest import MakeSettings
from tests.streaming.checkpoint.two_inputs import begin, recreate, settings_of_two
from tests.streaming.checkpoint_logs import add_entry


@pytest.fixture
def settings(make_settings: MakeSettings, store: BucketTable, tmp_path: Path) -> Settings:
    """Settings of an application with two input topics, which exist, and the table `store`."""
    return settings_of_two(make_settings, tmp_path)


Start = Callable[..., Recovered]


@contextmanager
def _starts(spark: SparkSession, settings: Settings) -> Iterator[Start]:
    """Give a function that recovers with some of the input topics, without skip_expired."""

    def start(*inputs: str) -> Recovered:
        changed = {"input": inputs, "skip_expired": False}
        own = settings.model_copy(update={"topics": settings.topics.model_copy(update=changed)})
        state = recover(spark, own, fresh=False, lease=lease)
        check_input(own, state)
        return state

    with closing(HeldLease(settings, "run")) as lease:
        yield start


def test_a_start_that_finds_other_input_topics_writes_nothing(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    # As with another Kafka cluster that has a job with the same storage: this cluster's job may be running.
    topics, folder = settings.topics.input, tmp_path / "checkpoint"
    _fill(settings, 9)
    with _starts(spark, settings) as start:
        start(*topics)
        add_entry(folder, "offsets", 0, {topic: {"0": 5} for topic in topics})
        add_entry(folder, "commits", 0, {})
        start(*topics)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        markers = read_markers(settings)
        recreate(settings, 1)
        with pytest.raises(CheckpointMismatch, match=f"input topic {topics[0]} was deleted and created again"):
            start(*topics)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        assert read_markers(settings) == markers


def test_an_input_topic_that_batches_have_run_without_is_refused(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    first, second = settings.topics.input
    folder = tmp_path / "checkpoint"
    _fill(settings, 9)
    with _starts(spark, settings) as start:
        start(first, second)
        add_entry(folder, "offsets", 0, {first: {"0": 5}, second: {"0": 6}})
        add_entry(folder, "commits", 0, {})
        # Left out by mistake, it comes back, as long as no batch has run without it.
        with pytest.raises(CheckpointMismatch, match=f"topics.input no longer names {second}"):
            start(first)
        assert start(first, second).settings_history.newest.input_ids == {
            topic: [own] for topic, own in input_ids(settings).items()
        }
        with pytest.raises(CheckpointMismatch, match="no longer names"):
            start(first)
        # That start had skip_expired. Its batch is cut off, and then committed.
        add_entry(folder, "offsets", 1, {first: {"0": 8}})
        for is_committed in (False, True):
            if is_committed:
                add_entry(folder, "commits", 1, {})
            with pytest.raises(CheckpointMismatch, match=f"topics.input names {second} again"):
                start(first, second)
        start(first)
        add_entry(folder, "offsets", 2, {first: {"0": 9}})
        add_entry(folder, "commits", 2, {})
        start(first)
        with pytest.raises(CheckpointMismatch, match="publish to a topic with another name"):
            start(first, second)


@pytest.mark.thorough
def test_an_input_topic_of_which_nothing_was_read_may_come_back(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    first, second = settings.topics.input
    folder = tmp_path / "checkpoint"
    _fill(settings, 9)
    with _starts(spark, settings) as start:
        start(first, second)
        add_entry(folder, "offsets", 0, {first: {"0": 5}, second: {"0": 0}})
        add_entry(folder, "commits", 0, {})
        # Spark's log has the topic, so only a start with skip_expired goes on without it.
        with pytest.raises(CheckpointMismatch, match=f"topics.input no longer names {second}"):
            start(first)
        add_entry(folder, "offsets", 1, {first: {"0": 6}})
        add_entry(folder, "commits", 1, {})
        start(first, second)


@pytest.mark.thorough
def test_a_checkpoint_that_follows_another_knows_which_topics_were_left_out(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    first, second = settings.topics.input
    folder = tmp_path / "checkpoint"
    known = {topic: [own] for topic, own in input_ids(settings).items()}
    _fill(settings, 9)
    # As `rescale` leaves it.
    begin(spark, settings, CheckpointOrigin("c", 1, 2, 3, 40, {first: {"0": 5}, second: {"0": 6}}, known))
    with _starts(spark, settings) as start:
        with pytest.raises(CheckpointMismatch, match="no longer names"):
            start(first)
        start(first, second)
        # Spark's Kafka source was begun without the topic, and no batch was planned.
        (folder / "sources" / "0").mkdir(parents=True)
        (folder / "sources" / "0" / "0").write_text("\0v1\n" + json.dumps({first: {"0": 5}}))
        with pytest.raises(CheckpointMismatch, match=f"topics.input names {second} again"):
            start(first, second)
        assert start(first).settings_history.newest.input_ids[second] == ["", *known[second]]


def _fill(settings: Settings, count: int) -> None:
    producer = Producer(librdkafka_options(settings.kafka))
    for topic in settings.topics.input:
        for _ in range(count):
            producer.produce(topic, b"v", partition=0)
    assert producer.flush(10) == 0
