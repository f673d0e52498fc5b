"""Merges of buckets next to the batches: their order, slice by slice, and the batches that wait for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import state.buckets.merge
import streaming.maintenance.merging
from sinks.buckets.bucket_table import BucketTable
from state.buckets.catalog import SegmentCatalog
from state.buckets.merge import MergeSlice, most_behind
from state.buckets.parts import MergeName
from state.buckets.segments import ANY_SHARD, Segment
from streaming.maintenance.merge import Merge, MergedSlice, finish_merge, merge_slice
from streaming.maintenance.merge_queue import MergeQueue
from streaming.maintenance.merging import Merging
from tests.streaming.maintenance.clocked_table import (
    BATCH_SETTINGS,
    FAN_IN,
    HOUR_MS,
    Table,
    add_bucket,
    maintenance_of,
    run_until_idle,
    seal,
)


def merge_of_two(table: Table, first: int, count: int) -> Merge:
    """Seal two buckets of `count` messages each, the first as number `first`, and return their merge."""
    dues = [table.now_ms + at for at in range(count)]
    return Merge(MergeName(first, first + 1, 1), {number: seal(table, number, dues) for number in (first, first + 1)})


def test_buckets_sealed_since_the_last_committed_batch_are_not_merged_yet(table: Table) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    for number in range(FAN_IN):
        add_bucket(table, catalog, maintenance, number, [table.now_ms + 48 * HOUR_MS])
    run_until_idle(maintenance, FAN_IN - 2, table.now_ms)
    assert len(catalog.buckets) == FAN_IN
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert len(catalog.buckets) == 1


@pytest.mark.thorough
def test_a_merge_goes_on_from_slice_to_slice_however_long_a_batch_takes(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state.buckets.merge, "SLICE_MESSAGES", 2)
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    for number in range(FAN_IN):
        add_bucket(table, catalog, maintenance, number, [table.now_ms + at * HOUR_MS for at in range(1, 4)])
    before = table.store.version()
    maintenance.before_batch(FAN_IN - 1, table.now_ms)
    maintenance.wait(60)
    # One for each due time.
    assert table.store.version() - before == 3
    # The next two batches finish it, and take it over.
    maintenance.before_batch(FAN_IN - 1, table.now_ms)
    maintenance.wait(60)
    assert len(catalog.buckets) == FAN_IN
    maintenance.before_batch(FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert [len(catalog.buckets), sum(segment.count for segment in catalog.overlapping(0, 2**62))] == [1, 3 * FAN_IN]


@pytest.mark.thorough
def test_small_merges_go_before_the_next_slice_of_a_large_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.buckets.merge, "SLICE_MESSAGES", 20)
    large, small = merge_of_two(table, 0, 30), merge_of_two(table, 2, 5)
    queue = MergeQueue()
    merging = Merging(table.store, queue, BATCH_SETTINGS, 1, lambda: None)
    queue.begin(large)
    queue.begin(small)
    merging.go_on(queue.go_on(3, 0))
    merging.wait(60)
    assert queue.take_sliced() == [small, large]
    # Finishing one goes before all slices.
    queue.begin(large)
    queue.finish(small)
    merging.go_on(queue.go_on(3, 0))
    merging.wait(60)
    assert queue.take_finished() == [small]
    merging.close()


@pytest.mark.thorough
def test_merges_that_end_together_are_finished_one_after_the_other_while_slices_go_on(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [merge_of_two(table, first, 1) for first in (0, 2)]
    queue = MergeQueue()
    merging = Merging(table.store, queue, BATCH_SETTINGS, 2, lambda: None)
    for merge in ended:
        queue.begin(merge)
    merging.go_on(queue.go_on(3, 0))
    merging.wait(60)
    assert len(queue.take_sliced()) == 2
    other_thread_went_on = threading.Event()

    def overtaken(store: BucketTable, merge: Merge, number: int) -> None:
        if merge is ended[0]:
            assert other_thread_went_on.wait(60)
        finish_merge(store, merge, number)
        other_thread_went_on.set()

    def sliced(*arguments: Any) -> MergedSlice:
        merged = merge_slice(*arguments)
        other_thread_went_on.set()
        return merged

    monkeypatch.setattr(streaming.maintenance.merging, "finish_merge", overtaken)
    monkeypatch.setattr(streaming.maintenance.merging, "merge_slice", sliced)
    for merge in ended:
        queue.finish(merge)
    queue.begin(merge_of_two(table, 4, 1))
    merging.go_on(queue.go_on(5, 0))
    merging.wait(60)
    assert queue.take_finished() == ended
    merging.close()
    assert sorted((row["bucket"], row["count"]) for row in table.store.metadata()) == [(1, 2), (3, 2), (4, 1), (5, 1)]


@pytest.mark.thorough
def test_what_a_merge_reads_is_not_deleted_before_it_is_finished(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.buckets.merge, "SLICE_MESSAGES", 2)
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    started, may_go_on = threading.Event(), threading.Event()

    def slow(store: BucketTable, *arguments: Any) -> Any:
        started.set()
        assert may_go_on.wait(60)
        return merge_slice(store, *arguments)

    monkeypatch.setattr(streaming.maintenance.merging, "merge_slice", slow)
    for number in range(FAN_IN):
        # The first one is delivered while the first slice is merged.
        add_bucket(table, catalog, maintenance, number, [table.now_ms + (number or 1) * HOUR_MS])
    maintenance.before_batch(FAN_IN - 1, table.now_ms)
    assert started.wait(60)
    table.advance(HOUR_MS + 60_000)
    catalog.forget_before(table.now_ms)
    before = table.store.delta_partitions()
    maintenance.before_batch(FAN_IN - 1, table.now_ms)
    assert table.store.delta_partitions() == before
    may_go_on.set()
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert len(catalog.buckets) == 1
    # The first slice had two messages, and is delivered too.
    assert [row["count"] for row in table.store.metadata()] == [FAN_IN - 2]


def test_a_batch_waits_for_merges_that_are_far_behind(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def when_allowed(_: BucketTable, merge: Merge, within: MergeSlice, *__: object) -> MergedSlice:
        has_begun.set()
        assert may_go_on.wait(60)
        merged = [(segment.count, segment.bytes) for segment in merge.replaced]
        messages, size = map(sum, zip(*merged, strict=True))
        return MergedSlice([Segment(merge.name.last, ANY_SHARD, 0, within.part, due_ms, due_ms, messages, size)])

    monkeypatch.setattr(streaming.maintenance.merging, "merge_slice", when_allowed)
    monkeypatch.setattr(streaming.maintenance.merging, "finish_merge", lambda *_: None)
    catalog, due_ms = SegmentCatalog(), table.now_ms + HOUR_MS
    maintenance = maintenance_of(table, catalog)
    few = most_behind(0, FAN_IN)
    many = 2 * most_behind(16 * few, FAN_IN)

    def sealed(buckets: range) -> None:
        segments = [Segment(number, 0, 0, str(number), due_ms, due_ms, 1, 1) for number in buckets]
        catalog.add(segments)
        maintenance.sealed(segments)
        maintenance.before_batch(buckets[-1], 0)

    sealed(range(few))
    assert maintenance.catch_up(few - 1, 0, 60) == 0
    sealed(range(few, many))
    assert has_begun.wait(60)
    # The batch goes on after its time, whatever merges do.
    assert maintenance.catch_up(many - 1, 0, 0.5) >= 0.5
    assert len(catalog.buckets) == many
    before = maintenance.merges
    assert (before.running > 0, before.finished, before.last) == (True, 0, None)
    may_go_on.set()
    assert 0 < maintenance.catch_up(many - 1, 0, 60) < 60
    assert len(catalog.buckets) <= most_behind(many, FAN_IN)
    assert catalog.messages == many
    after = maintenance.merges
    assert after.last is not None
    assert after.finished >= before.running
    assert after.last.buckets >= FAN_IN
    # The first ones were waited for.
    assert after.seconds >= 0.5
    # A job that stops does not wait.
    may_go_on.clear()
    sealed(range(many, 3 * many))
    maintenance.wake()
    assert maintenance.catch_up(3 * many - 1, 0, 60) < 60
    assert len(catalog.buckets) > most_behind(3 * many, FAN_IN)
    may_go_on.set()
    maintenance.close()
