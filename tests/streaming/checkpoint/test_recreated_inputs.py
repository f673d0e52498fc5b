"""A checkpoint's offsets after an input topic is deleted and created again. Crashes come anywhere."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import marker_key, read_markers
from sinks.topics.topic_ids import input_ids
from state.checkpoint.batch_settings import SettingsHistory
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from state.order import OrderKey
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import Recovered, recover
from streaming.checkpoint.recreated_inputs import read_from_beginning, read_nothing_of, recreated_inputs
from streaming.job.unfinished_batch import check_input
from tests.conftest import MakeSettings
from tests.messages import some_batch_settings
from tests.streaming.checkpoint.two_inputs import begin, recreate, settings_of_two
from tests.streaming.checkpoint_logs import add_entry


@pytest.fixture
def settings(make_settings: MakeSettings, store: BucketTable, tmp_path: Path) -> Settings:
    """Settings of an application with two input topics, which exist, and the table `store`."""
    return settings_of_two(make_settings, tmp_path)


class Cut(Exception):
    """A crash."""


def test_a_recreated_topic_is_read_from_its_beginning_after_the_planned_batch_which_reads_nothing_of_it(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = settings.topics.input
    known = {topic: [own] for topic, own in input_ids(settings).items()}
    checkpoint = Checkpoint(spark, str(tmp_path))
    checkpoint.initialize(CheckpointOrigin("c", 1, 2, input_ids=known))
    checkpoint.write_settings_history(SettingsHistory(((0, some_batch_settings(input_ids=known)),)))
    add_entry(tmp_path, "offsets", 4, {first: {"0": 5}, second: {"0": 6}})
    add_entry(tmp_path, "offsets", 5, {first: {"0": 9}, second: {"0": 8}})
    add_entry(tmp_path, "commits", 4, {})
    assert recreated_inputs(settings, known) == []

    recreate(settings, partitions=2)
    assert recreated_inputs(settings, known) == [first]
    refusing = settings.model_copy(update={"topics": settings.topics.model_copy(update={"skip_expired": False})})
    with pytest.raises(CheckpointMismatch, match=f"input topic {first} was deleted and created again"):
        recreated_inputs(refusing, known)

    # The second time, it was cut off.
    for _ in range(2):
        read_nothing_of(checkpoint, [first], unread=[], planned=5)
        assert checkpoint.read_offsets() == {first: {"0": 9}, second: {"0": 6}}
        assert checkpoint.planned(5).offsets == {first: {"0": 9}, second: {"0": 8}}
    add_entry(tmp_path, "commits", 5, {})

    def cut_off(_: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_settings_history", cut_off)
        with pytest.raises(Cut):
            read_from_beginning(settings, checkpoint, [first], unread=[])
    # The history still has the old topic's id, so that the next start repeats the step.
    assert recreated_inputs(settings, checkpoint.settings_history().newest.input_ids) == [first]
    read_from_beginning(settings, checkpoint, [first], unread=[])
    assert checkpoint.read_offsets() == {first: {"0": 0, "1": 0}, second: {"0": 8}}
    history = checkpoint.settings_history()
    assert history.at(5).input_ids == known
    assert history.at(6).input_ids == {first: [*known[first], input_ids(settings)[first]], second: known[second]}
    assert recreated_inputs(refusing, history.newest.input_ids) == []


@pytest.mark.parametrize("planned", [pytest.param(0, marks=pytest.mark.thorough), 9])
def test_a_topic_of_which_nothing_was_accepted_gives_way_to_the_one_created_in_its_place(
    spark: SparkSession, settings: Settings, tmp_path: Path, planned: int
) -> None:
    first, second = settings.topics.input
    refusing = settings.model_copy(update={"topics": settings.topics.model_copy(update={"skip_expired": False})})
    known = {topic: [own] for topic, own in input_ids(settings).items()}
    folder = tmp_path / "checkpoint"
    checkpoint = begin(spark, settings, CheckpointOrigin("c", 1, 2, input_ids=known))
    checkpoint.write_settings_history(SettingsHistory(((0, some_batch_settings(input_ids=known)),)))
    # It had more partitions.
    add_entry(folder, "offsets", 0, {first: {"0": 0, "1": 0}, second: {"0": 0}})
    add_entry(folder, "commits", 0, {})
    if planned:
        # The running job has planned a batch with records of the new topic, and has refused it.
        add_entry(folder, "offsets", 1, {first: {"0": planned, "1": 0}, second: {"0": 0}})
    recreate(settings, partitions=1)

    def gone(state: Recovered) -> list[str]:
        return check_input(refusing, state)

    with closing(HeldLease(settings, "run")) as lease:
        state = recover(spark, refusing, fresh=False, lease=lease)
        assert gone(state) == [first]
        if planned:
            read_nothing_of(checkpoint, [first], state.unread, planned=1)
            # The replay is cut off: at once, and when it has staged messages.
            assert gone(recover(spark, refusing, fresh=False, lease=lease)) == [first]
            ends = checkpoint.planned(1).offsets
            assert checkpoint.read_offsets()[first] == ends[first] == {"0": 0, "1": 0}
            _stage(settings, BatchSpan(checkpoint.origin, 1, ends=ends))
            assert gone(recover(spark, refusing, fresh=False, lease=lease)) == [first]
            add_entry(folder, "commits", 1, {})
        read_from_beginning(refusing, checkpoint, [first], state.unread)
        state = recover(spark, refusing, fresh=False, lease=lease)
        assert checkpoint.read_offsets() == {first: {"0": 0}, second: {"0": 0}}
        assert state.settings_history.newest.input_ids == {
            first: [input_ids(settings)[first]], second: known[second],
        }  # fmt: skip
        assert gone(state) == []


def test_a_topic_that_a_batch_before_it_was_cut_off_handed_messages_over_of_is_refused(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    first, second = settings.topics.input
    known = {topic: [own] for topic, own in input_ids(settings).items()}
    folder = tmp_path / "checkpoint"
    checkpoint = begin(spark, settings, CheckpointOrigin("c", 1, 2, input_ids=known))
    checkpoint.write_settings_history(SettingsHistory(((0, some_batch_settings(input_ids=known)),)))
    add_entry(folder, "offsets", 0, {first: {"0": 0}, second: {"0": 0}})
    add_entry(folder, "commits", 0, {})
    add_entry(folder, "offsets", 1, {first: {"0": 9}, second: {"0": 9}})
    _stage(settings, BatchSpan(checkpoint.origin, 1, ends={first: {"0": 9}}))
    with closing(HeldLease(settings, "run")) as lease:
        assert recover(spark, settings, fresh=False, lease=lease).unread == set()


@pytest.mark.thorough
def test_a_checkpoint_without_a_batch_begins_with_the_topics_that_are_there(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    first, second = settings.topics.input
    # As `rescale` leaves it.
    known = {topic: [own] for topic, own in input_ids(settings).items()}
    folder = tmp_path / "checkpoint"
    before = CheckpointOrigin("c", 1, 2, 3, 40, {first: {"0": 5}, second: {"0": 6}}, known)
    begin(spark, settings, before)
    with closing(HeldLease(settings, "run")) as lease:
        recover(spark, settings, fresh=False, lease=lease)
        assert {marker.batch.origin == before for marker in read_markers(settings) if marker} == {True}

        recreate(settings, partitions=1)
        refusing = settings.model_copy(update={"topics": settings.topics.model_copy(update={"skip_expired": False})})
        with pytest.raises(CheckpointMismatch, match=f"input topic {first} was deleted and created again"):
            recover(spark, refusing, fresh=False, lease=lease)
        # Spark's Kafka source was begun.
        (folder / "sources" / "0").mkdir(parents=True)
        (folder / "sources" / "0" / "0").write_text("\0v1\n" + json.dumps(before.offsets))
        state = recover(spark, settings, fresh=False, lease=lease)
        origin = state.checkpoint.origin
        assert origin.offsets == state.checkpoint.read_offsets() == {second: {"0": 6}}
        assert origin.input_ids == {first: [*known[first], input_ids(settings)[first]], second: known[second]}
        assert state.settings_history.newest.input_ids == origin.input_ids
        assert {marker.batch.origin == origin for marker in read_markers(settings) if marker} == {True}
        # It holds without the setting, once it is done.
        assert recover(spark, refusing, fresh=False, lease=lease).checkpoint.origin == origin


def _stage(settings: Settings, span: BatchSpan) -> None:
    """Write a marker of shard 1 for a batch."""
    producer = Producer(librdkafka_options(settings.kafka))
    marker = Progress(span, 1, OrderKey(1, settings.topics.input[0], 0, 0))
    producer.produce(settings.progress_topic, marker.to_bytes(), marker_key(1), 1)
    assert producer.flush(10) == 0
