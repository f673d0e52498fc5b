"""What is done before a job goes on from input topics that were created again."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import BucketUnreadable
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import ensure_topics
from streaming.checkpoint.recovery import recover
from streaming.job.unfinished_batch import begin_again
from tests.conftest import MakeSettings


def test_a_storage_that_fails_while_a_topic_that_was_created_again_is_begun_is_named(
    spark: SparkSession, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings, 1)
    with closing(HeldLease(settings, "run")) as lease:
        recover(spark, settings, fresh=False, lease=lease)
        entry = f"v1\n{json.dumps({'batchTimestampMs': 20, 'batchWatermarkMs': 10})}\n"
        offsets = json.dumps({settings.topics.input[0]: {"0": 0}})
        for log, text in (("offsets", entry + offsets), ("commits", 'v1\n{"nextBatchWatermarkMs":10}')):
            (tmp_path / "checkpoint" / log).mkdir()
            (tmp_path / "checkpoint" / log / "0").write_text(text)
        state = recover(spark, settings, fresh=False, lease=lease)
        newest = max((tmp_path / "buckets" / "_delta_log").glob("[0-9]*.json"))
        newest.write_text(newest.read_text()[:40])
        newest.with_name(f".{newest.name}.crc").unlink()
        jvm: Any = spark.sparkContext._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        with pytest.raises(BucketUnreadable, match=f"{newest.name} is missing or damaged"):
            begin_again(spark, settings, lease, state, [])
