"""Loads of the prefetch window that fail ahead of need. Batches go on until one needs messages that cannot be read."""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import chunks_of, sealed_part
from state.buckets.reach import Reach
from state.buckets.table_rows import described_segment
from state.message import decode_chunk
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.maintenance.failures import Failures
from streaming.monitor.table_state import StepFailures
from tests.messages import some_batch_settings
from tests.streaming.sealed import cut_short, seal_messages

BATCH_SETTINGS = some_batch_settings()
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
AHEAD_MS = 2 * MINUTE_MS


def taken(window: PrefetchWindow, start_ms: int, end_ms: int) -> list[int]:
    """Return the due times of the messages that a batch takes."""
    dues: list[int] = []
    for piece in window.take(start_ms, end_ms):
        for row in piece.collect():
            chunk = decode_chunk(bytes(row["chunk"])).column("deliver_at_ms").to_pylist()
            dues += [due for due in chunk if start_ms <= due < row["until_ms"]]
    window.advance(end_ms)
    end_loads(window)
    return sorted(dues)


def end_loads(window: PrefetchWindow) -> None:
    """Wait until the loads that run are done, or have failed."""
    wait([load.piece for load in window._loading])


@pytest.mark.parametrize(
    ("far_ms", "failed"),
    [
        pytest.param(3 * DAY_MS, 1, id="far"),
        pytest.param(3 * MINUTE_MS, 2, id="in the next load as well", marks=pytest.mark.thorough),
    ],
)
def test_a_damaged_file_ends_the_batch_that_needs_it_and_fails_no_load_before_the_pause_is_over(
    store: BucketTable, caplog: pytest.LogCaptureFixture, far_ms: int, failed: int
) -> None:
    near = [second * 1_000 for second in range(0, 160, 10)]
    seal_messages(store, 1, [{"deliver_at_ms": due, "offset": due} for due in near], BATCH_SETTINGS)
    seal_messages(store, 2, [{"deliver_at_ms": far_ms, "offset": far_ms}], BATCH_SETTINGS)
    (damaged,) = Path(store.path).glob(f"part={chunks_of(sealed_part(2))}/*.parquet")
    whole = cut_short(damaged)
    catalog = SegmentCatalog(described_segment(row.asDict()) for row in store.metadata())
    failures = Failures(store.path, lambda: 0.0)
    with caplog.at_level(logging.WARNING):
        window = PrefetchWindow(store, Reach(catalog, AHEAD_MS, 10**9), 0, [], shards=2, failures=failures)
        batches = [taken(window, second * 1_000, (second + 10) * 1_000) for second in range(0, 160, 10)]
    assert batches == [[due] for due in near]
    assert failures.by_step["load"] == StepFailures(failed, failed)
    assert f"{damaged} is missing or damaged" in caplog.text
    with pytest.raises(BucketUnreadable, match="It holds 1 messages of bucket 2"):
        taken(window, 160_000, far_ms + 1)
    # The batch is replayed after the file was put back.
    damaged.write_bytes(whole)
    again = PrefetchWindow(store, Reach(catalog, AHEAD_MS, 10**9), 160_000, [], shards=2)
    assert taken(again, 160_000, far_ms + 1) == [far_ms]
    again.close()
    window.close()


def test_loads_reach_ahead_again_when_the_file_is_back(store: BucketTable) -> None:
    seal_messages(store, 1, [{"deliver_at_ms": 3 * DAY_MS, "offset": 1}], BATCH_SETTINGS)
    (damaged,) = Path(store.path).glob(f"part={chunks_of(sealed_part(1))}/*.parquet")
    whole = cut_short(damaged)
    catalog = SegmentCatalog(described_segment(row.asDict()) for row in store.metadata())
    now_s = [0.0]
    failures = Failures(store.path, lambda: now_s[0])
    window = PrefetchWindow(store, Reach(catalog, AHEAD_MS, 10**9), 0, [], shards=2, failures=failures)
    at_ms = 0

    def batches_until(states: set[StepFailures]) -> None:
        nonlocal at_ms
        for _ in range(200):
            assert taken(window, at_ms, at_ms + 1_000) == []
            at_ms += 1_000
            if failures.by_step["load"] in states:
                return
            time.sleep(0.05)
        raise AssertionError(failures.by_step["load"])

    batches_until({StepFailures(1, 1)})
    damaged.write_bytes(whole)
    now_s[0] += 60
    batches_until({StepFailures(1, 0)})
    damaged.unlink()
    assert taken(window, at_ms, 3 * DAY_MS + 1) == [3 * DAY_MS], "loaded before"
    window.close()


@pytest.mark.thorough
def test_a_failed_load_is_forgotten_after_its_pause_if_no_load_reaches_as_far(store: BucketTable) -> None:
    due_ms = 3 * MINUTE_MS
    seal_messages(store, 1, [{"deliver_at_ms": due_ms, "offset": 1}], BATCH_SETTINGS)
    (damaged,) = Path(store.path).glob(f"part={chunks_of(sealed_part(1))}/*.parquet")
    whole = cut_short(damaged)
    catalog = SegmentCatalog(described_segment(row.asDict()) for row in store.metadata())
    now_s = [0.0]
    failures = Failures(store.path, lambda: now_s[0])
    window = PrefetchWindow(store, Reach(catalog, AHEAD_MS, 10**9), 0, [], shards=2, failures=failures)
    assert taken(window, 0, 1_000) == taken(window, 1_000, 2_000) == []
    assert failures.by_step["load"] == StepFailures(1, 1)
    damaged.write_bytes(whole)
    # A shorter load takes all messages that are left.
    assert taken(window, 2_000, 130_000) == []
    assert taken(window, 130_000, due_ms + 1) == [due_ms]
    assert failures.by_step["load"] == StepFailures(1, 1), "the pause goes on"
    now_s[0] += 60
    assert taken(window, due_ms + 1, due_ms + DAY_MS) == []
    assert failures.by_step["load"] == StepFailures(1, 0)
    window.close()


def cached(store: BucketTable) -> set[int]:
    """Return the numbers of what Spark keeps, without Delta's own state of tables."""
    kept = store.spark.sparkContext._jsc.getPersistentRDDs()
    return {number for number in kept if not kept[number].name().startswith("Delta Table State")}


@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged", "messages missing"])
def test_spark_keeps_nothing_of_a_failed_load(store: BucketTable, is_damaged: bool) -> None:
    seal_messages(store, 1, [{"deliver_at_ms": 1_000, "offset": 1}], BATCH_SETTINGS)
    rows = [row.asDict() for row in store.metadata()]
    if is_damaged:
        (damaged,) = Path(store.path).glob(f"part={chunks_of(sealed_part(1))}/*.parquet")
        cut_short(damaged)
    else:
        rows = [row | {"count": row["count"] + 1} for row in rows]
    before = cached(store)
    catalog = SegmentCatalog(map(described_segment, rows))
    window = PrefetchWindow(store, Reach(catalog, AHEAD_MS, 10**9), 0, [], shards=2)
    with pytest.raises(BucketUnreadable, match="missing or damaged" if is_damaged else "says at least 2"):
        taken(window, 0, 2_000)
    assert cached(store) == before
    window.close()


@pytest.mark.thorough
def test_two_loads_that_failed_ahead_of_need_do_not_end_a_batch(store: BucketTable) -> None:
    catalog = SegmentCatalog()
    window = PrefetchWindow(store, Reach(catalog, AHEAD_MS, 10**9), 0, [], shards=2)
    damaged: dict[Path, bytes] = {}

    def add_damaged(bucket: int, dues: list[int]) -> None:
        seal_messages(store, bucket, [{"deliver_at_ms": due, "offset": due} for due in dues], BATCH_SETTINGS)
        (file,) = Path(store.path).glob(f"part={chunks_of(sealed_part(bucket))}/*.parquet")
        damaged[file] = cut_short(file)
        window.add(
            segment
            for segment in (described_segment(row.asDict()) for row in store.metadata())
            if segment.bucket == bucket
        )

    add_damaged(1, [190_000])
    # The load of days fails, and after it one that reaches for two minutes.
    assert taken(window, 0, 10_000) == taken(window, 10_000, 20_000) == taken(window, 20_000, 90_000) == []
    assert [(load.start_ms, load.end_ms) for load in window._loading] == [(140_000, 210_000)]
    add_damaged(2, [100_000, 195_000])
    assert [(load.start_ms, load.end_ms) for load in window._loading][1:] == [(100_000, 210_000)]
    end_loads(window)
    for file, whole in damaged.items():
        file.write_bytes(whole)
    assert taken(window, 90_000, 150_000) == [100_000]
    assert taken(window, 150_000, 200_000) == [190_000, 195_000]
    window.close()
