"""A start with a checkpoint that is behind the markers or the table."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch, CheckpointUnreadable
from conf.kafka.options import librdkafka_options
from conf.setting_types import DAY
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.internal_topics.progress import marker_key, read_markers
from sinks.topics.topics import ensure_topics
from state.checkpoint.progress import NOT_IN_TABLE, BatchSpan, InTable, Progress
from state.checkpoint.staged import newest_checkpoint
from state.order import OrderKey
from streaming.checkpoint import recovery
from streaming.checkpoint.recovery import recover
from streaming.checkpoint.switch_over import writer_of_state
from streaming.storage.guarded_log import GuardedLog
from streaming.storage.paths import buckets_path
from tests.eventually import assert_eventually
from tests.messages import some_batch_settings
from tests.streaming.checkpoint_logs import commit, plan
from tests.streaming.crashed_holder import lease_after_a_crash, must_fence
from tests.streaming.sealed import sealed_rows


def stage(settings: Settings, span: BatchSpan, in_table: InTable = NOT_IN_TABLE) -> None:
    """Write a marker of shard 1 for a batch."""
    producer, progress = Producer(librdkafka_options(settings.kafka)), Progress(span, 1, OrderKey(1, "in", 0, 0))
    marker = replace(progress, in_table=in_table).to_bytes()
    producer.produce(settings.progress_topic, marker, marker_key(1), 1)
    assert producer.flush(10) == 0


def test_a_checkpoint_older_than_a_marker_of_any_shard_is_refused(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    origin = recover(spark, settings, False, lease).checkpoint.origin
    plan(tmp_path / "checkpoint", 0)
    recover(spark, settings, False, lease)
    stage(settings, BatchSpan(origin, 0))
    recover(spark, settings, False, lease)
    stage(settings, BatchSpan(origin, 3))
    with pytest.raises(CheckpointMismatch, match="batch 3 is already staged, but the checkpoint is at batch 0"):
        recover(spark, settings, False, lease)
    stage(settings, BatchSpan(replace(origin, checkpoint="other", generation=origin.generation + 1)))
    with pytest.raises(CheckpointMismatch, match="was replaced by other"):
        recover(spark, settings, False, lease)


def test_a_table_that_is_lost_or_older_than_a_marker_is_refused_and_not_written(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not by what a start after a crash does on S3: the newest table may be put back."""
    recovered = recover(spark, settings, False, lease)
    monkeypatch.setattr(lease, "after_a_crash", True)
    monkeypatch.setattr(recovery, "guarded_log", lambda spark, _: GuardedLog(spark, str(tmp_path), needed=True))
    origin, store, table = recovered.checkpoint.origin, recovered.store, tmp_path / "buckets"
    for batch_id in (0, 1):
        shutil.copytree(table, tmp_path / f"before-{batch_id}")
        plan(tmp_path / "checkpoint", batch_id)
        rows = sealed_rows(spark, batch_id, [{"deliver_at_ms": 99, "offset": batch_id}], some_batch_settings())
        store.append(rows, origin.checkpoint, batch_id)
    # The newest batch has staged nothing since it sealed.
    stage(settings, BatchSpan(origin, 1), in_table=InTable(0))
    table.rename(tmp_path / "newest")
    with pytest.raises(
        CheckpointMismatch, match=r"there is no table of sealed buckets next to \S+/checkpoint\. Is its disk"
    ):
        recover(spark, settings, False, lease)
    assert not table.exists()
    for copy, is_refused in (("before-0", True), ("before-1", False)):
        (tmp_path / copy).rename(table)
        store.forget_log()
        entries = sorted((table / "_delta_log").iterdir())
        if is_refused:
            with pytest.raises(CheckpointMismatch, match=r"is older than the checkpoint .* so it lacks messages"):
                recover(spark, settings, False, lease)
            assert sorted((table / "_delta_log").iterdir()) == entries
            assert not (tmp_path / "log-copies").exists()
            shutil.rmtree(table)
        else:
            assert recover(spark, settings, False, lease).catalog.messages == 1


def test_a_start_after_a_crash_fences_unless_it_is_refused_before(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    with closing(lease_after_a_crash(settings, "run")) as lease:
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "delayline-origin.json").write_text("damaged")
        with pytest.raises(CheckpointUnreadable):
            recover(spark, settings, False, lease)
        assert must_fence(settings, lease)
        shutil.rmtree(tmp_path / "checkpoint")
        recover(spark, settings, False, lease)
        assert not must_fence(settings, lease)


@pytest.mark.thorough
def test_a_start_after_the_progress_topic_was_lost_leaves_a_marker_of_each_shard(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    origin = recover(spark, settings, False, lease).checkpoint.origin
    plan(tmp_path / "checkpoint", 0)
    commit(tmp_path / "checkpoint", 0)
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.delete_topics([settings.progress_topic])[settings.progress_topic].result()
    assert_eventually(lambda: settings.progress_topic not in admin.list_topics(timeout=10).topics, 30)
    ensure_topics(settings)
    assert newest_checkpoint(read_markers(settings)) is None
    recover(spark, settings, False, lease)
    staged = newest_checkpoint(read_markers(settings))
    assert staged is not None
    assert (staged.origin, staged.last_batch, staged.whole_before_ms) == (origin, 0, 10)
    assert staged.ends == {"in": {"0": 7}}


@pytest.mark.thorough
def test_a_checkpoint_whose_remaining_messages_were_sealed_is_refused(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    recovered = recover(spark, settings, False, lease)
    plan(tmp_path / "checkpoint", 0)
    store, origin = recovered.store, replace(recovered.checkpoint.origin, first_bucket=5)
    rows = sealed_rows(spark, origin.overdue_bucket, [{"deliver_at_ms": 99}], some_batch_settings())
    store.append(rows, writer_of_state(origin.checkpoint), origin.overdue_bucket)
    with pytest.raises(CheckpointMismatch, match="delayline rebuild --discard-checkpoint"):
        recover(spark, settings, False, lease)


def test_a_checkpoint_that_a_rebuild_has_fenced_is_refused_with_the_command_that_goes_on(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    recovered = recover(spark, settings, False, lease)
    plan(tmp_path / "checkpoint", 0)
    recovered.store.fence(recovered.checkpoint.origin.checkpoint)
    with pytest.raises(CheckpointMismatch, match="Run `delayline rebuild --discard-checkpoint`"):
        recover(spark, settings, False, lease)


def test_a_batch_that_sealed_but_lost_its_plan_is_not_planned_again(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    origin = recover(spark, settings, False, lease).checkpoint.origin
    plan(tmp_path / "checkpoint", 0)
    plan(tmp_path / "checkpoint", 1)
    store = BucketTable(spark, buckets_path(settings))
    store.append(sealed_rows(spark, 1, [{"deliver_at_ms": 99}], some_batch_settings()), origin.checkpoint, 1)
    (tmp_path / "checkpoint" / "offsets" / "1").unlink()
    pattern = r"holds messages that batch 1 sealed, but the offset log of \S+ ends with batch 0.*delayline rebuild"
    with pytest.raises(CheckpointMismatch, match=pattern):
        recover(spark, settings, False, lease)
    (tmp_path / "checkpoint" / "offsets" / "0").unlink()
    with pytest.raises(CheckpointMismatch, match="ends with batch None"):
        recover(spark, settings, False, lease)


def test_a_batch_that_a_clock_far_ahead_has_planned_is_planned_again_unless_it_has_run(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    origin = recover(spark, settings, False, lease).checkpoint.origin
    folder, now_ms = tmp_path / "checkpoint", time.time_ns() // 1_000_000
    plan(folder, 0, now_ms)
    plan(folder, 1, now_ms + 366 * DAY)
    recovered = recover(spark, settings, False, lease)
    assert recovered.planned is not None
    assert (recovered.planned.batch_id, recovered.checkpoint.last_planned(), recovered.has_left) == (0, 0, False)
    # A job with a greater limit has run it.
    plan(folder, 1, now_ms + 366 * DAY)
    store = BucketTable(spark, buckets_path(settings))
    store.append(sealed_rows(spark, 1, [{"deliver_at_ms": 99}], some_batch_settings()), origin.checkpoint, 1)
    recovered = recover(spark, settings, False, lease)
    assert (recovered.checkpoint.last_planned(), recovered.has_left) == (1, True)
