"""What waits in sealed buckets after a batch, on a real Delta table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sinks.bucket_store import BucketStore
from state import stored
from streaming.waiting import live_segments
from tests.messages import some_rules
from tests.streaming.sealed import seal_messages

RULES = some_rules(segment_max_ms=10_000, segment_max_messages=70)
LAST_MS = 60_000
# Sealed by batch 1 and 2, about 70 messages to a segment; several at one instant.
DUES = {number: sorted(random.Random(number).choices(range(LAST_MS), k=400) + [30_000] * 9) for number in (1, 2)}


@pytest.fixture(autouse=True)
def _several_chunks_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "CHUNK_MESSAGES", 7)


def seal_all(store: BucketStore) -> None:
    for number, dues in DUES.items():
        rows = [{"deliver_at_ms": due, "offset": at} for at, due in enumerate(dues)]
        seal_messages(store, number, rows, RULES)


def test_without_a_table_nothing_waits(spark: SparkSession, tmp_path: Path) -> None:
    assert live_segments(BucketStore(spark, str(tmp_path / "none")), 1, 0) == []


def test_what_is_left_of_segments_that_are_delivered_in_part_is_counted(store: BucketStore) -> None:
    seal_all(store)
    for cutoff_ms in (0, 12_345, 30_000, LAST_MS):
        segments = live_segments(store, 2, cutoff_ms)
        waiting = [due for dues in DUES.values() for due in dues if due >= cutoff_ms]
        assert sum(segment.count for segment in segments) == len(waiting)
        assert min((segment.min_deliver_at_ms for segment in segments), default=None) == min(waiting, default=None)
        assert all(segment.bytes == pytest.approx(65 * segment.count, abs=1) for segment in segments)


def test_buckets_that_a_later_batch_sealed_are_left_out(store: BucketStore) -> None:
    seal_all(store)
    segments = live_segments(store, 1, 0)
    assert {segment.bucket for segment in segments} == {1}
    assert sum(segment.count for segment in segments) == len(DUES[1])
