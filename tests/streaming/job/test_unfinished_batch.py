"""A batch that was cut off is finished before anything else follows."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import BucketUnreadable
from conf.setting_types import DAY
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import ensure_topics
from state.buckets.operator import SHARD_OUTPUT_SCHEMA
from streaming.checkpoint.recovery import recover
from streaming.job import unfinished_batch
from streaming.job.unfinished_batch import begin_again, finish_planned
from streaming.job.watches.clock_watch import now_ms
from tests.conftest import MakeSettings
from tests.streaming.sealed import seal_messages

_FAN_IN = 3


def _log(settings: Settings, checkpoint: Path, planned: int, committed: int) -> None:
    """Write the logs of batches that read nothing, as Spark does."""
    entry = f"v1\n{json.dumps({'batchTimestampMs': 20, 'batchWatermarkMs': 10})}\n"
    offsets = json.dumps({settings.topics.input[0]: {"0": 0}})
    logs = (("offsets", planned, entry + offsets), ("commits", committed, 'v1\n{"nextBatchWatermarkMs":10}'))
    for log, newest, text in logs:
        (checkpoint / log).mkdir()
        for batch_id in range(newest + 1):
            (checkpoint / log / str(batch_id)).write_text(text)


def test_a_storage_that_fails_while_a_topic_that_was_created_again_is_begun_is_named(
    spark: SparkSession, make_settings: MakeSettings, store: BucketTable, tmp_path: Path
) -> None:
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings, 1)
    with closing(HeldLease(settings, "run")) as lease:
        recover(spark, settings, fresh=False, lease=lease)
        _log(settings, tmp_path / "checkpoint", planned=0, committed=0)
        state = recover(spark, settings, fresh=False, lease=lease)
        newest = max((tmp_path / "buckets" / "_delta_log").glob("[0-9]*.json"))
        newest.write_text(newest.read_text()[:40])
        newest.with_name(f".{newest.name}.crc").unlink()
        jvm: Any = spark.sparkContext._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        with pytest.raises(BucketUnreadable, match=f"{newest.name} is missing or damaged"):
            begin_again(spark, settings, lease, state, [])


@pytest.mark.thorough
def test_no_merge_begins_beside_a_batch_that_is_finished_alone(
    spark: SparkSession,
    make_settings: MakeSettings,
    store: BucketTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runner after it would give its merges the same names, and would delete what these have left."""
    settings = make_settings(f"storage.path={tmp_path}", f"bucket.fan_in={_FAN_IN}")
    ensure_topics(settings, 1)
    ran: list[int] = []

    def start_query(*arguments: Any, only_planned: bool) -> Any:
        """Run the batch without rows of a state stage."""
        assert only_planned
        run_batch = arguments[-1]
        run_batch(spark.createDataFrame([], from_arrow_schema(SHARD_OUTPUT_SCHEMA)), _FAN_IN)
        ran.append(_FAN_IN)
        return SimpleNamespace(isActive=False, exception=lambda: None)

    monkeypatch.setattr(unfinished_batch, "start_query", start_query)
    with closing(HeldLease(settings, "run")) as lease:
        state = recover(spark, settings, fresh=False, lease=lease)
        for number in range(_FAN_IN):
            due_ms = now_ms() + DAY
            seal_messages(store, number, [{"deliver_at_ms": due_ms}], state.settings_history.newest)
        _log(settings, tmp_path / "checkpoint", planned=_FAN_IN, committed=_FAN_IN - 1)
        before = store.version()
        finish_planned(spark, settings, state.checkpoint, lease)
        assert ran == [_FAN_IN]
        assert store.version() == before
