"""A merge on a real Delta table: what readers get before and after it, and a merge that finds too few messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.errors import BucketUnreadable
from sinks.bucket_table import BucketTable
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.message import decode_chunk
from streaming.maintenance.merge import merge_buckets
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

_HOUR = 3_600_000
BATCH_SETTINGS = some_batch_settings()


def seal(store: BucketTable, number: int, *dues: int) -> list[Segment]:
    """Store a bucket with one message due at each of `dues`, whose offset is the due time."""
    return seal_messages(store, number, [{"deliver_at_ms": due, "offset": due} for due in dues], BATCH_SETTINGS)


def waiting(store: BucketTable, version: int | None = None) -> list[int]:
    labels = {row["time_partition"] for row in store.metadata(version)}
    chunks = store.chunks(0, 10**15, labels, version=version).collect()
    return sorted(due for row in chunks for due in decode_chunk(bytes(row["chunk"])).column("offset").to_pylist())


def described(store: BucketTable) -> set[Segment]:
    return {described_segment(row.asDict()) for row in store.metadata()}


def test_a_merge_keeps_waiting_messages_drops_delivered_ones_and_leaves_other_buckets(store: BucketTable) -> None:
    buckets = {
        1: seal(store, 1, 10, 20, 3 * _HOUR),
        2: seal(store, 2, 15, 3 * _HOUR + 5),
        3: seal(store, 3, 12),
    }
    merged = merge_buckets(store, {number: buckets[number] for number in (1, 2)}, 16, BATCH_SETTINGS)
    assert merged.buckets == [1, 2]
    assert {segment.bucket for segment in merged.segments} == {2}
    assert waiting(store) == [12, 20, 3 * _HOUR, 3 * _HOUR + 5]
    assert described(store) == {*merged.segments, *buckets[3]}


def test_a_reader_of_the_previous_version_and_a_bucket_sealed_meanwhile_are_not_affected(store: BucketTable) -> None:
    buckets = {number: seal(store, number, number, 100 + number) for number in (1, 2)}
    before = store.version()
    late = seal(store, 3, 7)
    merged = merge_buckets(store, buckets, 0, BATCH_SETTINGS)
    assert waiting(store, before) == [1, 2, 101, 102]
    assert waiting(store) == [1, 2, 7, 101, 102]
    assert described(store) == {*merged.segments, *late}


def test_a_merged_bucket_can_be_merged_again(store: BucketTable) -> None:
    first = merge_buckets(
        store, {number: seal(store, number, 10 + number, _HOUR) for number in (1, 2)}, 0, BATCH_SETTINGS
    )
    second = merge_buckets(store, {2: first.segments, 3: seal(store, 3, 5)}, 0, BATCH_SETTINGS)
    assert {segment.bucket for segment in second.segments} == {3}
    assert waiting(store) == [5, 11, 12, _HOUR, _HOUR]


def test_a_merge_that_finds_fewer_messages_than_the_metadata_changes_nothing(store: BucketTable) -> None:
    sealed = {number: seal(store, number, number, 50) for number in (1, 2)}
    version = store.version()
    wrong = {1: [replace(segment, count=segment.count + 1) for segment in sealed[1]], 2: sealed[2]}
    with pytest.raises(BucketUnreadable, match=r"buckets \[1, 2\] hold 4 waiting messages, and their metadata says 5"):
        merge_buckets(store, wrong, 0, BATCH_SETTINGS)
    assert store.version() == version
