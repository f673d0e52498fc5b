"""A merge on a real Delta table: what readers get meanwhile, and a merge that finds too few messages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import state.buckets.merge
import streaming.maintenance.merge
from conf.errors import BucketUnreadable
from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from sinks.buckets.chunk_plans import in_one_task
from sinks.buckets.join_commits import join_ids
from state.buckets.cancelled import NOTHING_FORGETTABLE, cancelled_rows
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows, MergeName
from state.buckets.segments import ANY_SHARD, Segment
from state.buckets.table_rows import described_segment
from state.message import decode_chunk
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from tests.eventually import assert_eventually
from tests.messages import cancelled, some_batch_settings
from tests.streaming.sealed import seal_messages, written_late

_YEAR = 365 * 24 * 3_600_000
BATCH_SETTINGS = some_batch_settings(segment_max_messages=4)
_NUMBERS = count(1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.buckets.merge, "SLICE_MESSAGES", 6)


def seal(store: BucketTable, number: int, *dues: int) -> list[Segment]:
    """Store a bucket with one message due at each of `dues`. A message's offset is its due time."""
    return seal_messages(store, number, [{"deliver_at_ms": due, "offset": due} for due in dues], BATCH_SETTINGS)


def merge_of(buckets: dict[int, list[Segment]]) -> Merge:
    return Merge(MergeName(min(buckets), max(buckets), 1), buckets)


def run(store: BucketTable, merge: Merge, staged_before_ms: int = 0) -> Iterator[None]:
    """Run a merge, and yield after each slice."""
    while within := merge.next_slice(staged_before_ms):
        merge.add(merge_slice(store, merge, within, BATCH_SETTINGS, ALL_BUCKETS), within)
        yield
    merge.check(staged_before_ms)
    finish_merge(store, merge, next(_NUMBERS))


def merged(store: BucketTable, buckets: dict[int, list[Segment]], staged_before_ms: int = 0) -> list[Segment]:
    merge = merge_of(buckets)
    list(run(store, merge, staged_before_ms))
    return merge.merged


def waiting(store: BucketTable, version: int | None = None) -> list[int]:
    parts = {described_segment(row.asDict()).part for row in store.metadata(version)}
    return read(store, parts, version)


def read(store: BucketTable, parts: set[str], version: int | None = None) -> list[int]:
    chunks = store.chunks(0, 10**15, parts, version=version).collect()
    return sorted(due for row in chunks for due in decode_chunk(bytes(row["chunk"])).column("offset").to_pylist())


def described(store: BucketTable) -> set[Segment]:
    return {described_segment(row.asDict()) for row in store.metadata()}


def test_a_merge_keeps_waiting_messages_drops_delivered_ones_and_leaves_other_buckets(store: BucketTable) -> None:
    buckets = {1: seal(store, 1, 10, 20, _YEAR), 2: seal(store, 2, 15, _YEAR + 5), 3: seal(store, 3, 12)}
    segments = merged(store, {number: buckets[number] for number in (1, 2)}, 16)
    assert {(segment.bucket, segment.shard) for segment in segments} == {(2, ANY_SHARD)}
    assert waiting(store) == [12, 20, _YEAR, _YEAR + 5]
    assert described(store) == {*segments, *buckets[3]}


@pytest.mark.thorough
def test_a_large_merge_is_done_in_slices_of_due_time_that_each_have_a_part(store: BucketTable) -> None:
    """A bucket that is sealed meanwhile is not affected."""
    buckets = {number: seal(store, number, *range(number, 20, 2)) for number in (1, 2)}
    merge = merge_of(buckets)
    running = run(store, merge)
    next(running)
    late = seal(store, 3, 7)
    slices = 1 + len(list(running))
    assert slices > 2
    assert len({segment.part for segment in merge.merged}) == slices
    assert [segment.segment for segment in merge.merged] == list(range(len(merge.merged)))
    ranges = [(segment.min_deliver_at_ms, segment.max_deliver_at_ms) for segment in merge.merged]
    assert ranges == sorted(ranges)
    assert waiting(store) == sorted([7, *range(1, 20)])
    assert described(store) == {*merge.merged, *late}


@pytest.mark.thorough
def test_a_reader_finds_each_message_once_in_every_version_during_a_merge(store: BucketTable) -> None:
    buckets = {number: seal(store, number, *range(number, 20, 2)) for number in (1, 2)}
    catalog = SegmentCatalog(segment for segments in buckets.values() for segment in segments)
    merge = merge_of(buckets)
    first = store.version()
    for _ in run(store, merge):
        assert waiting(store) == list(range(1, 20))
        assert read(store, catalog.parts_of(catalog.overlapping(0, 100))) == list(range(1, 20))
        catalog.announce(merge.replaced, merge.merged)
    # The catalog does not know yet that the merge is finished.
    parts = catalog.parts_of(catalog.overlapping(0, 100))
    for version in range(first, store.version() + 1):
        assert read(store, parts, version) == list(range(1, 20))
    catalog.replace(buckets, merge.merged)
    assert read(store, catalog.parts_of(catalog.overlapping(0, 100))) == list(range(1, 20))


@pytest.mark.thorough
def test_a_merged_bucket_can_be_merged_again(store: BucketTable) -> None:
    first = merged(store, {number: seal(store, number, 10 + number, _YEAR + number) for number in (1, 2)})
    second = merged(store, {2: first, 3: seal(store, 3, 5)})
    assert {segment.bucket for segment in second} == {3}
    assert waiting(store) == [5, 11, 12, _YEAR + 1, _YEAR + 2]


def test_a_merge_that_finds_fewer_messages_than_the_metadata_changes_nothing(store: BucketTable) -> None:
    sealed = {number: seal(store, number, number, 50 + number) for number in (1, 2)}
    before = described(store)
    wrong = {1: [replace(segment, count=segment.count + 1) for segment in sealed[1]], 2: sealed[2]}
    with pytest.raises(BucketUnreadable, match=r"buckets \[1, 2\] hold 4 waiting messages, but their metadata says 5"):
        merged(store, wrong)
    assert described(store) == before
    assert waiting(store) == [1, 2, 51, 52]


@pytest.mark.thorough
def test_a_slice_is_merged_although_the_cancelled_ids_that_it_reads_are_joined_meanwhile(
    store: BucketTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = {number: seal(store, number, 100 + number, 200 + number) for number in (1, 2)}
    for number, due in ((3, 101), (4, 202)):
        rows = cancelled_rows(cancelled([("delayline-in", 0, due, due - 5, due + 5)]), number)
        store.append(store.spark.createDataFrame(rows), "cancels", number)
    begun, released = tmp_path / "begun", tmp_path / "released"

    def late(*arguments: Any) -> DataFrame:
        return written_late(in_one_task(*arguments), begun, released)

    monkeypatch.setattr(streaming.maintenance.merge, "in_one_task", late)
    merge = merge_of(buckets)
    within = merge.next_slice(0)
    assert within is not None
    with ThreadPoolExecutor(1) as threads:
        slice_merged = threads.submit(merge_slice, store, merge, within, BATCH_SETTINGS, ALL_BUCKETS)
        assert_eventually(begun.exists)
        join_ids(store, IdRows.CANCELLED, [3, 4], NOTHING_FORGETTABLE)
        released.touch()
        merged_slice = slice_merged.result(60)
    assert (sum(segment.count for segment in merged_slice.segments), merged_slice.cancelled) == (2, 2)
