"""How a merge is divided into slices, and that it keeps every waiting message."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

import state.buckets.merge
from state.buckets.cancelled_filter import CancelledFilter
from state.buckets.merge import MergeSlice, merged_rows, slice_end
from state.buckets.parts import MergeName, chunks_of, is_metadata, metadata_of
from state.buckets.segments import ANY_SHARD, Segment, cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment, segment_rows
from state.message import decode_chunk
from state.order import in_order
from state.shards import by_shard
from tests.messages import placed, some_batch_settings, with_cancelled
from tests.thorough import examples

KEY = ["deliver_at_ms", "topic", "partition", "offset"]
DAY_MS = 24 * 3_600_000

# How a merge is divided

# A fifth of the real one, so that a few thousand segments make many slices.
SLICE_MESSAGES = 200_000
SLICE_BYTES = 128 * 1024 * 1024
SEGMENT_MESSAGES = 20_000


@pytest.fixture(autouse=True)
def _smaller_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.buckets.merge, "SLICE_MESSAGES", SLICE_MESSAGES)


def in_segments(dues: list[int], bucket: int, times: int, message_bytes: int = 100) -> list[Segment]:
    """Return the segments of a bucket that has, for each of `dues`, `times` messages."""
    dues, step = sorted(dues), SEGMENT_MESSAGES // times
    pieces = [dues[at : at + step] for at in range(0, len(dues), step)]
    return [
        Segment(bucket, 0, at, "p", own[0], own[-1], times * len(own), times * len(own) * message_bytes)
        for at, own in enumerate(pieces)
    ]


def wide_over_narrow(seed: random.Random) -> list[Segment]:
    """A large merged bucket, and fifteen sealed ones that each are one segment over the same year."""
    merged = in_segments([seed.randrange(365 * DAY_MS) for _ in range(20_000)], 0, 100)
    sealed = (in_segments([seed.randrange(365 * DAY_MS) for _ in range(200)], number, 75) for number in range(1, 16))
    return [*merged, *(segment for segments in sealed for segment in segments)]


def sixteen(dues: Callable[[random.Random, int], list[int]]) -> Callable[[random.Random], list[Segment]]:
    """Sixteen buckets, each with the due times that `dues` returns for its number."""
    return lambda seed: [each for number in range(16) for each in in_segments(dues(seed, number), number, 100)]


DISTRIBUTIONS: dict[str, Callable[[random.Random], list[Segment]]] = {
    "all in one millisecond": sixteen(lambda seed, number: [5 * DAY_MS] * 600),
    "one a day for a year": sixteen(lambda seed, number: [day * DAY_MS for day in range(365)]),
    "exponential": sixteen(lambda seed, number: [int(seed.expovariate(1 / DAY_MS)) for _ in range(600)]),
    "two far clusters": sixteen(
        lambda seed, number: [seed.choice([0, 300 * DAY_MS]) + seed.randrange(60_000) for _ in range(600)]
    ),
    "earlier the later they were sealed": sixteen(
        lambda seed, number: [(16 - number) * DAY_MS - seed.randrange(DAY_MS) for _ in range(600)]
    ),
    "wide segments over narrow ones": wide_over_narrow,
    "large messages": lambda seed: [
        each
        for number in range(16)
        for each in in_segments([seed.randrange(DAY_MS) for _ in range(600)], number, 100, seed.choice([10, 10_000]))
    ],
}


def share(segment: Segment) -> float:
    """Return what part of a slice a segment fills."""
    return max(segment.count / SLICE_MESSAGES, segment.bytes / SLICE_BYTES)


def share_within(segment: Segment, start_ms: int, end_ms: int) -> float:
    """Return what part of a slice the messages of `segment` due in [start_ms, end_ms) fill, if evenly spread."""
    first_ms, last_ms = segment.min_deliver_at_ms, segment.max_deliver_at_ms + 1
    within_ms = min(last_ms, end_ms) - max(first_ms, start_ms)
    return share(segment) * max(0, within_ms) / (last_ms - first_ms)


def sliced(segments: list[Segment], start_ms: int) -> list[tuple[int, int]]:
    """Return the slices of `segments` from `start_ms` on."""
    slices: list[tuple[int, int]] = []
    while (end_ms := slice_end(segments, start_ms)) is not None:
        slices.append((start_ms, end_ms))
        start_ms = end_ms
        assert len(slices) <= 2 + 2 * sum(map(share, segments)) + len(segments)
    return slices


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=list(DISTRIBUTIONS))
@given(st.integers(0, 10**6), st.one_of(st.just(0), st.integers(0, 20 * DAY_MS), st.integers(0, 366 * DAY_MS)))
@settings(max_examples=10)
def test_slices_meet_and_cover_all_that_waits_in_pieces_of_bounded_size(
    distribution: Callable[[random.Random], list[Segment]], seed: int, start_ms: int
) -> None:
    segments = distribution(random.Random(seed))
    slices = sliced(segments, start_ms)
    last_ms = max(segment.max_deliver_at_ms for segment in segments)
    if start_ms > last_ms:
        assert slices == []
        return
    assert (slices[0][0], slices[-1][1]) == (start_ms, last_ms + 1)
    assert all(first_ms < end_ms for first_ms, end_ms in slices)
    # All messages of a millisecond are in one slice. Otherwise a slice is full when it reaches its share.
    for first_ms, end_ms in slices:
        filled = sum(share_within(segment, first_ms, end_ms) for segment in segments)
        in_last_ms = sum(share_within(segment, end_ms - 1, end_ms) for segment in segments)
        assert filled <= 1 + in_last_ms + 1e-6


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_sealed_buckets_that_span_a_year_are_merged_in_slices_of_about_equal_size(shards: int) -> None:
    seed = random.Random(1)
    # 15,000 messages to a segment, one each half hour: so the segments begin and end within half an hour.
    segments = [
        Segment(
            bucket, shard, 0, "p", seed.randrange(DAY_MS // 48), 365 * DAY_MS - seed.randrange(DAY_MS // 48), 15_000, 1
        )
        for bucket in range(16)
        for shard in range(shards)
    ]
    slices = sliced(segments, 0)
    total = sum(map(share, segments))
    assert len(slices) <= 2 * total + 1
    assert max(sum(share_within(segment, *each) for segment in segments) for each in slices) <= 2


def test_nothing_is_left_once_all_segments_are_behind() -> None:
    only = Segment(1, 0, 0, "p", 10, 20, 5, 5)
    assert [slice_end([only], start_ms) for start_ms in (0, 10, 20, 21)] == [21, 21, 21, None]
    assert slice_end([], 0) is None


# The output of a merge

# Due within milliseconds of each other, or far apart.
DUE = st.one_of(st.integers(0, 99), st.integers(0, 10**9))
BUCKET = st.lists(st.tuples(DUE, st.integers(0, 3)), min_size=1, max_size=40)
MERGED = MergeName(0, 9, 3)


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.buckets.merge, "SLICE_MESSAGES", 12)


def stored(buckets: list[pa.Table]) -> tuple[list[Segment], pa.Table]:
    """Return the segments of sealed buckets, of two shards each, and their stored chunks."""
    batch_settings = some_batch_settings(segment_max_messages=7)
    sealed = [
        piece
        for number, bucket in enumerate(buckets)
        for shard, own in by_shard(bucket, 2)
        for piece in cut(own, number, shard, batch_settings)
    ]
    rows = [batch for segment, own in sealed for batch in segment_rows(segment, own, 2)]
    table = pa.Table.from_batches(rows, schema=STORED_SCHEMA)
    chunks = table.filter(pa.array(not is_metadata(part) for part in table.column("part").to_pylist()))
    return [segment for segment, _ in sealed], chunks.sort_by([(name, "ascending") for name in KEY])


@pytest.mark.usefixtures("small_slices")
@given(st.lists(BUCKET, min_size=1, max_size=5), DUE, st.sets(st.integers(0, 40)))
@settings(max_examples=examples(60))
def test_merged_slice_by_slice_each_waiting_message_is_in_one_segment_in_order_and_indexed_but_for_cancelled_ones(
    buckets: list[Any], start_ms: int, cancelled: set[int]
) -> None:
    tables = placed(buckets)
    segments, chunks = stored(tables)
    gone = [row for row in pa.concat_tables(tables).to_pylist() if row["offset"] in cancelled]
    batch_settings = some_batch_settings(segment_max_messages=9, bucket_max_bytes=500, index_precision_bits=3)
    # The output of each slice, as a merge makes them one after the other.
    merged: list[Segment] = []
    order_keys: list[tuple[Any, ...]] = []
    for number, (from_ms, end_ms) in enumerate(sliced(segments, start_ms)):
        within = MergeSlice(MERGED.part(number), from_ms, end_ms, first_segment=len(merged))
        overlapping = chunks.filter((pc.field("deliver_at_ms") < end_ms) & (pc.field("max_deliver_at_ms") >= from_ms))
        run = merged_rows(9, within, batch_settings, CancelledFilter(len(buckets)))
        batches = with_cancelled(overlapping.to_batches(max_chunksize=3), len(buckets), gone)
        rows = [row for batch in run(iter(batches)) for row in batch.to_pylist()]
        for metadata in (row for row in rows if is_metadata(row["part"])):
            segment = described_segment(metadata)
            own = [row for row in rows if not is_metadata(row["part"]) and row["segment"] == segment.segment]
            assert (segment.bucket, segment.shard, segment.part) == (9, ANY_SHARD, within.part)
            assert metadata["part"] == metadata_of(within.part)
            assert {(row["part"], row["bucket"], row["shard"]) for row in own} == {
                (chunks_of(within.part), 9, ANY_SHARD)
            }
            messages_of = pa.concat_tables(decode_chunk(row["chunk"]) for row in own)
            keys = [tuple(row[name] for name in KEY) for row in messages_of.to_pylist()]
            assert keys == [tuple(row[name] for name in KEY) for row in in_order(messages_of).to_pylist()]
            assert (segment.count, segment.min_deliver_at_ms, segment.max_deliver_at_ms) == (
                len(keys), keys[0][0], keys[-1][0],
            )  # fmt: skip
            assert from_ms <= keys[0][0] <= keys[-1][0] < end_ms
            assert len(keys) == 1 or (len(keys) <= 9 and segment.bytes <= 500)
            assert indexed(metadata) == {(*key[1:], key[0] >> metadata["precision_bits"]) for key in keys}
            merged.append(segment)
            order_keys += keys
    everything = in_order(pa.concat_tables(tables)).to_pylist()
    waiting = [row for row in everything if row["deliver_at_ms"] >= start_ms and row["offset"] not in cancelled]
    assert order_keys == [tuple(row[name] for name in KEY) for row in waiting]
    assert [segment.segment for segment in merged] == list(range(len(merged)))


def indexed(metadata: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Return the ids in the index entries of a segment, each with the number of its time slot."""
    ids = [
        (entry["topic"], entry["partition"], offset, entry["tick_ms"] >> metadata["precision_bits"])
        for entry in metadata["index_entries"]
        for offset in BitMap64.deserialize(entry["offsets"])
    ]
    assert len(set(ids)) == len(ids)
    return set(ids)


def test_a_slice_without_waiting_messages_has_no_rows() -> None:
    within = MergeSlice(MERGED.part(0), 50, 60, first_segment=0)
    _, chunks = stored(placed([[(10, 0), (70, 1)]]))
    assert list(merged_rows(9, within, some_batch_settings())(iter(chunks.to_batches()))) == []
