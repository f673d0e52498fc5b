"""A rebuild that was cut off, and the next try: it goes on, or begins again, and never refuses itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.lanes.terms import write_terms
from sinks.topics.topic_ids import input_ids
from state.claims import Terms
from streaming.checkpoint.current import current_checkpoint
from streaming.operations import rebuild
from tests.conftest import MakeSettings
from tests.messages import some_batch_settings
from tests.streaming.checkpoint.two_inputs import recreate
from tests.streaming.operations.unstaged_job import (
    COUNT,
    SHARDS,
    CutOff,
    cut_off,
    publish,
    read_without_staging,
    rebuilt,
)
from tests.streaming.sealed import waiting_offsets


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path) -> Settings:
    """Settings of an application whose job has read two input topics, and has staged nothing."""
    topics = ",".join(f"in-{uuid.uuid4().hex[:8]}" for _ in range(2))
    settings = make_settings(f"storage.path={tmp_path}", f"bucket.shards={SHARDS}", f"topics.input={topics}")
    read_without_staging(settings)
    return settings


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    with closing(HeldLease(settings, "rebuild")) as lease:
        yield lease


@pytest.fixture
def admin_client(settings: Settings) -> AdminClient:
    return AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})


@pytest.fixture
def recreated(settings: Settings) -> Settings:
    """The settings with `topics.skip_expired`, after the first input topic was created again."""
    publish(settings, recreate(settings, 1), 5)
    return settings.model_copy(update={"topics": settings.topics.model_copy(update={"skip_expired": True})})


def test_it_goes_on_with_a_topic_that_was_created_again(
    spark: SparkSession, recreated: Settings, store: BucketTable, lease: HeldLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, (again, kept) = recreated, recreated.topics.input
    with monkeypatch.context() as patch:
        # The markers have the new checkpoint then, and both ids of the topic.
        patch.setattr("streaming.checkpoint.switch_over.make_current", cut_off)
        with pytest.raises(CutOff):
            rebuilt(spark, own, store, lease)
    rebuilt(spark, own, store, lease)
    offsets = current_checkpoint(spark, own).origin.offsets
    assert (offsets[again], offsets[kept]["0"]) == ({"0": 0}, COUNT)
    assert waiting_offsets(store) == list(range(COUNT))
    # A job may have run from here, and may have accepted messages of either topic.
    with pytest.raises(CheckpointMismatch, match=f"{again} was deleted and created again since the job read the first"):
        rebuilt(spark, own, store, lease)


@pytest.mark.thorough
def test_a_try_that_sealed_nothing_leaves_its_bucket_to_no_try_with_other_inputs(
    spark: SparkSession,
    settings: Settings,
    store: BucketTable,
    lease: HeldLease,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _ = settings.topics.input
    mistaken = settings.model_copy(update={"topics": settings.topics.model_copy(update={"input": (first,)})})
    for own, step in ((settings, "seal_rest"), (mistaken, "switch_over")):
        with monkeypatch.context() as patch:
            patch.setattr(rebuild, step, cut_off)
            with pytest.raises(CutOff):
                rebuilt(spark, own, store, lease)
    rebuilt(spark, settings, store, lease)
    assert waiting_offsets(store) == sorted([*range(COUNT)] * 2)


def test_a_topic_created_again_that_a_job_has_begun_to_read_is_refused_before_any_marker_has_its_id(
    spark: SparkSession, recreated: Settings, store: BucketTable, lease: HeldLease
) -> None:
    ids = {each: [f"old-{each}", own] for each, own in input_ids(recreated).items()}
    batch_settings = replace(some_batch_settings(), input_ids=ids)
    write_terms(recreated, Terms(1, 0, batch_settings), lease.check)
    with pytest.raises(CheckpointMismatch, match="was deleted and created again since the job read the first"):
        rebuilt(spark, recreated, store, lease)


@pytest.mark.parametrize("are_deleted", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_it_does_not_take_the_rest_of_other_input_topics_for_its_own(
    spark: SparkSession,
    settings: Settings,
    store: BucketTable,
    lease: HeldLease,
    admin_client: AdminClient,
    monkeypatch: pytest.MonkeyPatch,
    are_deleted: bool,
) -> None:
    first, _ = settings.topics.input
    mistaken = settings.model_copy(update={"topics": settings.topics.model_copy(update={"input": (first,)})})
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "switch_over", cut_off)
        with pytest.raises(CutOff):
            rebuilt(spark, mistaken, store, lease)
    assert waiting_offsets(store) == list(range(COUNT))
    if not are_deleted:
        rebuilt(spark, settings, store, lease)
        assert waiting_offsets(store) == sorted([*range(COUNT)] * 2)
        return
    partition = TopicPartition(first, 0, 3)
    admin_client.delete_records([partition])[partition].result()
    with pytest.raises(CheckpointMismatch, match=r"with the topics\.input of that rebuild"):
        rebuilt(spark, settings, store, lease)
    rebuilt(spark, mistaken, store, lease)
    assert waiting_offsets(store) == list(range(COUNT))
