"""Figures of segments, and how many bytes of a table are read, on real Delta."""

from __future__ import annotations

import random
import uuid
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.segment_figures import index_entries, slots
from state.buckets.parts import IS_METADATA
from tests.messages import messages
from tests.sinks.buckets.bucket_rows import HOUR, bucket, parts, stored


@pytest.mark.thorough
def test_time_slots_are_those_of_the_segments_that_an_instant_falls_inside(
    spark: SparkSession, store: BucketTable
) -> None:
    store.append(bucket(spark, 1, 10, 20, 30, bits=4, segment_max_messages=2), "checkpoint", 1)
    store.append(bucket(spark, 2, 15, 25, bits=3), "checkpoint", 2)

    def cut(*instants_ms: int, version: int | None = None) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in slots(store, instants_ms, version).collect())

    one, other = (1, 0, 0, 4, [0, 16], [1, 1]), (2, 0, 0, 3, [8, 24], [1, 1])
    assert cut(16) == cut(16, 20, 99) == [one, other]
    assert cut(11, 15) == [one]
    assert cut(25) == [other]
    assert cut(10, 26, 30) == []
    assert cut(16, version=store.version() - 1) == [one]


@pytest.mark.thorough
def test_the_offsets_are_not_read_with_the_time_slots(spark: SparkSession, store: BucketTable) -> None:
    # So far apart that each offset takes 10 bytes, in two time slots.
    instants = range(0, 50_000 * 70_000, 70_000)
    store.append(bucket(spark, 1, *instants, bits=31, segment_max_messages=50_000), "checkpoint", 1)
    offsets = sum(len(entry["offsets"]) for row in index_entries(store) for entry in row["index_entries"])
    assert offsets > 500_000
    # Delta's log and the file footers take about 80,000 bytes, whatever a query reads.
    assert _bytes_read(spark, slots(store, [10**9])) < offsets / 4


def test_messages_are_counted_by_topic_and_span_without_offsets(spark: SparkSession, store: BucketTable) -> None:
    def sealed(number: int, topics: str, *dues: int) -> DataFrame:
        rows = [{"deliver_at_ms": due, "offset": due, "topic": topic} for due, topic in zip(dues, topics, strict=True)]
        return stored(spark, messages(rows), number, segment_max_messages=3)

    store.append(sealed(1, "aab" + "aac", 1, 2, 3, 10, 11, 5_000), "checkpoint", 1)
    store.append(sealed(2, "ab", 20, 21), "checkpoint", 2)
    store.append(sealed(3, "aa", 90_000, 3_600_000), "checkpoint", 3)
    spans = sorted(tuple(row) for row in store.counted_by_topic(["a", "b"], 10))
    assert [(topic, count) for topic, count, _, _ in spans] == [("a", 1), ("a", 1), ("a", 3), ("b", 1)]
    of_due = {10: 11, 90_000: 90_000, 3_600_000: 3_600_000}
    for _, _, first_ms, last_ms in spans[:3]:
        (due_ms,) = (due_ms for due_ms in of_due if first_ms <= due_ms <= last_ms)
        # A segment has an index as fine as its span.
        assert of_due[due_ms] <= last_ms < first_ms + 300_000
    assert [tuple(row[:2]) for row in store.counted_by_topic(["c", "d"], 0)] == [("c", 1)]


@pytest.mark.thorough
def test_the_bytes_read_depend_on_the_range_and_not_on_the_table(spark: SparkSession, store: BucketTable) -> None:
    # One file of 20 MB, 200 chunks in order of due time, and as much in another bucket.
    value = random.Random(1).randbytes(100_000)
    hour = {"segment_max_messages": 10}
    for start in (0, HOUR):
        store.append(bucket(spark, start // HOUR, *range(start, start + HOUR, 18_000), value=value, **hour), "c", start)
    partitions = parts(store)
    whole = _bytes_read(spark, store.chunks(0, 2 * HOUR, partitions))
    tenth = _bytes_read(spark, store.chunks(HOUR, HOUR + HOUR // 10, partitions))
    hundredth = _bytes_read(spark, store.chunks(HOUR, HOUR + HOUR // 100, partitions))
    metadata = _bytes_read(spark, spark.read.format("delta").load(store.path).where(IS_METADATA))
    assert whole > 2 * 200 * len(value)
    # The granularity is a row group of 1 MB.
    assert tenth < whole / 2 / 10 * 1.5 + 2**21
    assert hundredth < whole / 2 / 100 + 2**21
    assert metadata < whole / 100


def _bytes_read(spark: SparkSession, rows: DataFrame) -> int:
    """Run `rows` and return how many bytes its stages read from files, as Spark counts them."""
    spark.sparkContext.setJobGroup(uuid.uuid4().hex, "bytes read")
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    # Hadoop does not count bytes that Parquet reads by its vectored reads, as from Spark 4.1 on.
    spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
    rows.write.format("noop").mode("overwrite").save()
    spark.conf.unset("parquet.hadoop.vectored.io.enabled")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", cast(str, None))
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    store = context.statusStore()
    jobs = tracker.getJobIdsForGroup(group)
    infos = [tracker.getJobInfo(job) for job in jobs]
    stages = {stage for info in infos if info is not None for stage in info.stageIds}
    # A stage that was skipped has read nothing, and Spark forgets it before all others.
    known = [store.lastStageAttempt(stage) for stage in stages if tracker.getStageInfo(stage) is not None]
    ran = [stage for stage in known if str(stage.status()) == "COMPLETE"]
    assert len(ran) == sum(store.job(job).numCompletedStages() for job in jobs) > 0
    return sum(stage.inputBytes() for stage in ran)
