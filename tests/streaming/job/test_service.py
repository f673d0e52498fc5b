"""What the service says of an input or a storage that Spark cannot read."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import BrokerUnreachable, BucketUnreadable, RecordUnreadable, RightMissing
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import ensure_topics
from sources.intake.stamp_check import MOST_FOUND, Unreadable
from streaming.checkpoint.recovery import recover
from streaming.job import service
from streaming.job.service import check_stamps
from tests.conftest import MakeSettings

CHECKPOINT: Any = SimpleNamespace(
    last_planned=lambda: 3, read_offsets=dict, planned=lambda _: SimpleNamespace(offsets={"in": {"0": 9}})
)


@pytest.mark.parametrize(
    ("count", "names", "said"),
    [(1, 1, None), (10, 10, None), (11, 10, " (the first 10 of 11 found):"),
     (MOST_FOUND, 10, " (the first 10 of 1000 found):")],
)  # fmt: skip
def test_the_first_unreadable_records_are_named_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, count: int, names: int, said: str | None
) -> None:
    records = [Unreadable("in", 0, offset, 10**18) for offset in range(count)]
    monkeypatch.setattr(service, "unreadable_records", lambda *_: records)
    with pytest.raises(RecordUnreadable) as raised:
        check_stamps(Settings(), CHECKPOINT)
    text = str(raised.value)
    assert text.startswith(f"record-unreadable: {'; '.join(map(str, records[:names]))}")
    assert text.count("has timestamp") == names
    assert ("found" in text) == (said is not None)
    assert said is None or said in text


@pytest.mark.parametrize("problem", [BrokerUnreachable("in cannot be read to the end"), RightMissing("no right Read")])
def test_an_input_that_cannot_be_searched_hides_no_other_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    def failing(*_: Any) -> list[Unreadable]:
        raise problem

    monkeypatch.setattr(service, "unreadable_records", failing)
    check_stamps(Settings(), CHECKPOINT)
    assert str(problem) in caplog.text


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
            service._begin_again(spark, settings, lease, state, [])
