"""Which checkpoint a rescale refuses: one that was replaced, or that lost its newest batches or its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from conf.errors import ApplicationHeld, CheckpointMismatch, CheckpointUnreadable
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import announce_origin, marker_key, read_markers
from sinks.topics.partitions import partition_counts
from sinks.topics.topics import ensure_topics
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, Progress
from state.order import OrderKey
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import recover
from streaming.checkpoint.switch_over import writer_of_repaired_rest, writer_of_state
from streaming.operations.rescale import _rescale, _stage, refuse_replaced
from streaming.storage.guarded_log import guarded_log
from streaming.storage.paths import buckets_path
from tests.conftest import MakeSettings
from tests.messages import some_batch_settings
from tests.streaming.checkpoint_logs import commit, plan
from tests.streaming.sealed import sealed_rows, waiting_offsets

FIRST = CheckpointOrigin("one", 1, 2)
SECOND = replace(FIRST, checkpoint="two", generation=2)


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path) -> Settings:
    """Settings of an application with its topics."""
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings)
    return settings


@pytest.fixture
def first(spark: SparkSession, tmp_path: Path) -> Checkpoint:
    """A checkpoint that is not retired."""
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    checkpoint.initialize(FIRST)
    return checkpoint


def test_a_retired_checkpoint_is_taken_up_again_until_the_next_one_has_staged(
    first: Checkpoint, settings: Settings
) -> None:
    announce_origin(settings, FIRST)
    first.retire()
    refuse_replaced(first, read_markers(settings), first.last_planned())
    announce_origin(settings, SECOND)
    refuse_replaced(first, read_markers(settings), first.last_planned())
    producer = Producer(librdkafka_options(settings.kafka))
    marker = Progress(BatchSpan(SECOND, 0), 1, OrderKey(1, "in", 0, 0))
    producer.produce(settings.progress_topic, marker.to_bytes(), marker_key(1), 1)
    assert producer.flush(10) == 0
    with pytest.raises(CheckpointMismatch, match="checkpoint one was replaced by two"):
        refuse_replaced(first, read_markers(settings), first.last_planned())


def test_a_checkpoint_that_is_not_retired_is_refused_if_another_was_announced(
    first: Checkpoint, settings: Settings
) -> None:
    announce_origin(settings, SECOND)
    with pytest.raises(CheckpointMismatch, match="checkpoint one was replaced by two"):
        refuse_replaced(first, read_markers(settings), first.last_planned())


@pytest.fixture
def lease(settings: Settings) -> Iterator[HeldLease]:
    with closing(HeldLease(settings, "rescale")) as held:
        yield held


@pytest.fixture
def checkpoint(spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path) -> Checkpoint:
    """The checkpoint of a job that has run one batch."""
    begun = recover(spark, settings, False, lease).checkpoint
    plan(tmp_path / "checkpoint", 0)
    commit(tmp_path / "checkpoint", 0)
    return begun


def test_a_checkpoint_that_lost_a_batch_which_has_sealed_is_refused_before_anything_changes(
    spark: SparkSession, settings: Settings, lease: HeldLease, checkpoint: Checkpoint
) -> None:
    # The offset log has nothing of batch 1.
    store, origin = BucketTable(spark, buckets_path(settings)), checkpoint.origin
    store.append(sealed_rows(spark, 1, [{"deliver_at_ms": 99}], some_batch_settings()), origin.checkpoint, 1)
    with pytest.raises(CheckpointMismatch, match=r"that batch 1 sealed, but the offset log .* batch 0"):
        _rescale(spark, settings, 8, lease)
    assert not checkpoint.is_retired()
    assert partition_counts(settings, [settings.progress_topic])[settings.progress_topic] < 8


def test_a_checkpoint_that_lost_what_a_rescale_reads_is_refused_before_it_is_retired(
    spark: SparkSession, settings: Settings, lease: HeldLease, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint" / "delayline-settings.json").unlink()
    with pytest.raises(CheckpointUnreadable, match=r"batches, but delayline-settings\.json is missing"):
        _rescale(spark, settings, 3, lease)
    assert not checkpoint.is_retired()


def test_a_rescale_that_was_paused_until_another_process_took_the_lease_retires_no_checkpoint(
    spark: SparkSession,
    settings: Settings,
    lease: HeldLease,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise ApplicationHeld("another process holds the lease")

    # The last answer of the broker still counts.
    monkeypatch.setattr(lease, "check_now", refuse)
    with pytest.raises(ApplicationHeld):
        _rescale(spark, settings, 3, lease)
    assert not checkpoint.is_retired()


def test_a_rescale_without_its_state_keeps_what_a_repair_has_left_of_the_rest(
    spark: SparkSession, settings: Settings, lease: HeldLease, checkpoint: Checkpoint
) -> None:
    """The power failed after it had sealed the state, whose newest files are lost too. A rebuild needs the rest."""
    store, own = BucketTable(spark, buckets_path(settings)), checkpoint.origin.checkpoint
    rows = sealed_rows(spark, 1, [{"deliver_at_ms": 99, "offset": 7}], some_batch_settings())
    store.append(rows, writer_of_state(own), 1)
    store.fence(writer_of_repaired_rest(1))
    with pytest.raises(SparkRuntimeException, match="Failed to read the state"):
        _stage(store, guarded_log(spark, settings), settings, 3, checkpoint, lease)
    assert waiting_offsets(store) == [7]
