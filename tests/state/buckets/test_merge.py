"""Which buckets are merged, and that a merge keeps every waiting message in its time partition."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.merge import MergeSlice, choose, merged_rows, slices
from state.buckets.segments import Segment, cut
from state.buckets.table_rows import METADATA_PART, STORED_SCHEMA, described_segment, segment_rows
from state.index.due_counts import time_slot
from state.index.message_index import MessageIndex
from state.message import decode_chunk
from state.order import in_order
from state.shards import shards_of
from tests.messages import placed, some_batch_settings

KEY = ["deliver_at_ms", "topic", "partition", "offset"]
BUCKET = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3)), min_size=1, max_size=40)


def segment(bucket: int, count: int, due_ms: int = 0, number: int = 0) -> Segment:
    return Segment(bucket, 0, number, "0-1", due_ms, due_ms + 1, count, 1)


def buckets_of(*counts: int) -> dict[int, list[Segment]]:
    return {number: [segment(number, count)] for number, count in enumerate(counts)}


def test_nothing_is_merged_up_to_the_limit() -> None:
    assert choose(buckets_of(1, 1, 1), limit=3) == []
    assert choose({}, limit=1) == []
    assert choose(buckets_of(5), limit=1) == []


def test_four_adjacent_buckets_with_the_fewest_messages_are_merged() -> None:
    assert choose(buckets_of(9, 9, 1, 2, 3, 1, 9), limit=3) == [2, 3, 4, 5]
    # The two smallest are not adjacent, and stay.
    assert choose(buckets_of(1, 50, 50, 50, 50, 9, 9, 9, 1), limit=3) == [5, 6, 7, 8]


def test_fewer_than_four_buckets_are_all_merged() -> None:
    assert choose(buckets_of(3, 1, 2), limit=2) == [0, 1, 2]
    assert choose(buckets_of(3, 1), limit=1) == [0, 1]


def test_among_equals_the_run_with_the_earliest_message_is_merged() -> None:
    buckets = {number: [segment(number, 10, due_ms=1000 - number)] for number in range(8)}
    assert choose(buckets, limit=3) == [4, 5, 6, 7]


def test_all_segments_of_a_bucket_count() -> None:
    buckets = buckets_of(4, 4, 4, 4, 5)
    buckets[0].append(segment(0, 10, number=1))
    assert choose(buckets, limit=3) == [1, 2, 3, 4]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 90_000)), min_size=1, max_size=60)
)
def test_slices_are_adjacent_and_cover_all_waiting_messages(spans: list[tuple[int, int, int]]) -> None:
    segments = [
        Segment(1, 0, at, "", first, first + length, count, 1) for at, (first, length, count) in enumerate(spans)
    ]
    cut_slices = slices(segments, start_ms=0)
    assert [each.number for each in cut_slices] == list(range(len(cut_slices)))
    assert all(one.end_ms == other.start_ms for one, other in pairwise(cut_slices))
    assert all(each.start_ms < each.end_ms for each in cut_slices)
    assert cut_slices[0].start_ms == 0
    assert cut_slices[-1].end_ms == max(each.max_deliver_at_ms for each in segments) + 1
    assert len(cut_slices) <= 17


def stored(buckets: list[pa.Table]) -> pa.Table:
    batch_settings = some_batch_settings(
        segment_max_ms=20, segment_max_messages=7, time_partition_ms=30, index_precision_bits=2
    )
    rows = [
        batch
        for number, sealed in enumerate(buckets)
        # Sealed at another cutoff, the same instant can be in a time partition of another length.
        for segment, part in cut(sealed, number, 0, -2000 * number, batch_settings)
        for batch in segment_rows(segment, part, batch_settings.index_precision_bits)
    ]
    return pa.Table.from_batches(rows, schema=STORED_SCHEMA)


def chunks_of(table: pa.Table) -> pa.Table:
    return table.filter(pa.array(part != METADATA_PART for part in table.column("part").to_pylist()))


@given(
    st.lists(BUCKET, min_size=1, max_size=4),
    st.integers(0, 60),
    st.lists(st.integers(1, 99), max_size=3),
    st.integers(1, 3),
)
@settings(max_examples=80)
def test_merged_rows_contain_each_waiting_message_once_in_its_time_partition(
    buckets: list[Any], start_ms: int, cuts: list[int], shards: int
) -> None:
    tables = placed(buckets)
    before = chunks_of(stored(tables))
    bounds = [start_ms, *sorted({cut for cut in cuts if cut > start_ms}), 100]
    batch_settings = some_batch_settings(
        segment_max_ms=25, segment_max_messages=9, shard_keys=tuple(range(shards)), index_precision_bits=3
    )
    given_rows: list[dict[str, Any]] = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        source = before.sort_by([("part", "ascending"), *((name, "ascending") for name in KEY)])
        run = merged_rows(9, MergeSlice(number, low, high), batch_settings)
        for batch in run(iter(source.to_batches(max_chunksize=3))):
            given_rows += batch.to_pylist()

    label_of = {
        offset: row["part"]
        for row in before.to_pylist()
        for offset in decode_chunk(row["chunk"]).column("offset").to_pylist()
    }
    chunks = [row for row in given_rows if row["part"] != METADATA_PART]
    due_by_offset = {}
    for row in chunks:
        piece = decode_chunk(row["chunk"])
        assert piece == in_order(piece)
        assert row["bucket"] == 9
        assert [row[name] for name in KEY] == [piece.column(name)[0].as_py() for name in KEY]
        assert set(shards_of(piece, shards).tolist()) == {row["shard"]}
        for offset, due in zip(*(piece.column(name).to_pylist() for name in ("offset", "deliver_at_ms")), strict=True):
            assert offset not in due_by_offset
            assert label_of[offset] == row["part"]
            due_by_offset[offset] = due
    waiting = {
        offset: due
        for table in tables
        for offset, due in zip(*(table.column(name).to_pylist() for name in ("offset", "deliver_at_ms")), strict=True)
        if due >= start_ms
    }
    assert due_by_offset == waiting

    metadata = [row for row in given_rows if row["part"] == METADATA_PART]
    index = MessageIndex(3)
    for row in metadata:
        index.add_entries(row["index_entries"], row["precision_bits"])
    assert len(index) == len(waiting)
    assert all(index.slot_of("delayline-in", 0, at) == time_slot(due >> 3, 3) for at, due in waiting.items())

    described = [described_segment(row) for row in metadata]
    assert len({(each.shard, each.segment) for each in described}) == len(described)
    assert sum(each.count for each in described) == len(waiting)
    for each in described:
        segment_chunks = [row for row in chunks if (row["shard"], row["segment"]) == (each.shard, each.segment)]
        assert sum(row["count"] for row in segment_chunks) == each.count
        assert {row["part"] for row in segment_chunks} == {each.time_partition}
        assert min(row["deliver_at_ms"] for row in segment_chunks) == each.min_deliver_at_ms
        assert max(row["max_deliver_at_ms"] for row in segment_chunks) == each.max_deliver_at_ms
