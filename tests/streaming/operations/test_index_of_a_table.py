"""The index of sealed messages, read back from the metadata of a real Delta table."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from sinks.buckets.bucket_table import ALL_BUCKETS, BucketTable
from sinks.buckets.segment_figures import precisions
from state.buckets import table_rows
from state.buckets.parts import MergeName, part_of, sealed_part
from state.index.due_counts import TimeSlot
from state.message_ids import ids_of
from streaming.maintenance.merge import Merge, finish_merge, merge_slice
from streaming.operations.table_contents import index_of
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

_SOURCES = [("in-a", 0), ("in-a", 1), ("in-b", 0)]


@pytest.fixture(autouse=True)
def _many_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many time slots that each segment has the precision of its bucket."""
    monkeypatch.setattr(table_rows, "_SLOTS", 1 << 20)


def rows(first: int, count: int) -> list[dict[str, object]]:
    """Return messages of all sources, due 1 s apart, for several segments. The offset is the due time in seconds."""
    ids = [(*_SOURCES[at % 3], at) for at in range(first, first + count)]
    return [
        {"topic": topic, "partition": partition, "offset": at, "deliver_at_ms": at * 1000}
        for topic, partition, at in ids
    ]


@pytest.mark.thorough
def test_the_index_has_every_sealed_id_of_every_source_and_its_time_slot(store: BucketTable) -> None:
    batch_settings = some_batch_settings(segment_max_messages=40, index_precision_bits=12)
    for number in (1, 2):
        seal_messages(store, number, rows(1000 * number, 200), batch_settings)
    version = store.version()
    # A later seal belongs to another version.
    seal_messages(store, 3, rows(3000, 5), batch_settings)
    index = index_of(store, version)
    sealed = [*range(1000, 1200), *range(2000, 2200)]
    assert len(index) == len(sealed)
    for at, (topic, partition) in enumerate(_SOURCES):
        assert index.offsets_of(topic, partition) == BitMap64([offset for offset in sealed if offset % 3 == at])
    start_ms = 1_000_000 >> 12 << 12
    assert index.slot_of("in-a", 1, 1000) == TimeSlot(start_ms, start_ms + 4096)


@pytest.mark.thorough
@pytest.mark.parametrize("sealed_at", [(15, 10, 0), (0, 10, 15)])
def test_after_a_change_of_the_precision_the_index_has_the_coarsest(
    store: BucketTable, sealed_at: tuple[int, ...]
) -> None:
    for number, bits in enumerate(sealed_at):
        seal_messages(store, number, rows(1000 * number, 30), some_batch_settings(index_precision_bits=bits))
    assert precisions(store) == {0, 10, 15}
    index = index_of(store, store.version())
    assert len(index) == 90
    assert index.slot_of(*_SOURCES[1], 1000) == TimeSlot(983_040, 983_040 + 32_768)


@pytest.mark.thorough
def test_a_merge_rewrites_the_ids_at_the_precision_of_its_settings(store: BucketTable) -> None:
    old = some_batch_settings(index_precision_bits=15)
    buckets = {number: seal_messages(store, number, rows(100 * number, 30), old) for number in (1, 2)}
    merge = Merge(MergeName(1, 2, 1), buckets)
    while within := merge.next_slice(105_000):
        merge.add(merge_slice(store, merge, within, some_batch_settings(index_precision_bits=14), ALL_BUCKETS), within)
    finish_merge(store, merge, 1)
    assert precisions(store) == {14}
    index = index_of(store, store.version())
    waiting = [*range(105, 130), *range(200, 230)]
    assert [len(index.offsets_of(*source)) for source in _SOURCES] == [
        sum(at % 3 == number for at in waiting) for number in range(3)
    ]
    assert index.before(105_000 >> 14 << 14) == (0, 0)


def test_the_index_of_a_table_without_buckets_is_empty(store: BucketTable) -> None:
    index = index_of(store, store.version())
    assert (len(index), index.offsets_of("in-a", 0)) == (0, BitMap64())


def test_a_message_is_located_in_its_segment_and_time_slot_before_and_after_a_merge(store: BucketTable) -> None:
    batch_settings = some_batch_settings(segment_max_messages=40, index_precision_bits=12)
    buckets = {number: seal_messages(store, number, rows(1000 * number, 200), batch_settings) for number in (1, 2)}

    def located_as(*message_id: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = store.locate(ids_of([message_id]), ALL_BUCKETS, 0).to_pylist()
        return rows

    def located(at: int) -> tuple[int, str, TimeSlot]:
        (found,) = located_as(*_SOURCES[at % 3], at)
        assert found["from_ms"] <= at * 1000 <= found["until_ms"]
        # Cut to the bounds of the segment.
        start_ms, last_ms = found["from_ms"] >> 12 << 12, found["until_ms"] >> 12 << 12
        assert start_ms == last_ms
        return found["bucket"], part_of(found["part"]) or "", TimeSlot(start_ms, last_ms + 4096)

    for at in (1000, 1101, 2199):
        slot_ms = at * 1000 >> 12 << 12
        assert located(at) == (at // 1000, sealed_part(at // 1000), TimeSlot(slot_ms, slot_ms + 4096))
    assert located_as("in-a", 0, 1000) == []
    assert located_as("in-a", 1, 1003 + 3000) == []
    assert located_as("in-c", 1, 1000) == []
    merge = Merge(MergeName(1, 2, 1), buckets)
    while within := merge.next_slice(0):
        merge.add(merge_slice(store, merge, within, batch_settings, ALL_BUCKETS), within)
    # The slices are not live before the merge is finished.
    assert located(1000)[:2] == (1, sealed_part(1))
    finish_merge(store, merge, 1)
    for at in (1000, 1101, 2199):
        bucket, part, slot = located(at)
        assert (bucket, slot.start_ms) == (2, at * 1000 >> 12 << 12)
        assert part in {segment.part for segment in merge.merged}
