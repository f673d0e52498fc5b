"""Locating ids in the metadata of segments, against the messages of the segments one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import BucketUnreadable
from state.buckets.table_rows import STORED_SCHEMA
from state.index import locate
from state.index.locate import ENTRY_SCHEMA, LOCATED_SCHEMA, METADATA, entries_of, located, locating, spans_of
from state.index.message_index import index_entries
from state.message_ids import ids_of
from tests.messages import messages

ID = st.tuples(st.sampled_from(["in-a", "in-b"]), st.integers(0, 1), st.integers(0, 12))
# The due time of each message; in several segments, each with a precision of its own.
SEGMENT = st.tuples(st.dictionaries(ID, st.integers(0, 200), min_size=1, max_size=12), st.integers(0, 6))
SEGMENTS = st.lists(SEGMENT, max_size=4)


def metadata_row(number: int, dues: dict[tuple[str, int, int], int], bits: int) -> dict[str, Any]:
    rows = [
        {"topic": topic, "partition": partition, "offset": offset, "deliver_at_ms": due}
        for (topic, partition, offset), due in dues.items()
    ]
    return {
        "part": f"part-{number}",
        "bucket": 10 + number,
        "deliver_at_ms": min(dues.values()),
        "max_deliver_at_ms": max(dues.values()),
        "repeats": number % 2,
        "precision_bits": bits,
        "index_entries": index_entries(messages(rows), bits),
    }


def metadata(segments: list[tuple[dict[tuple[str, int, int], int], int]]) -> pa.RecordBatch:
    rows = [metadata_row(number, dues, bits) for number, (dues, bits) in enumerate(segments)]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([STORED_SCHEMA.field(name) for name in METADATA]))


@given(
    segments=SEGMENTS,
    wanted=st.sets(ID, max_size=20),
    cut=st.integers(0, 4),
    before_bucket=st.integers(10, 15),
    from_ms=st.integers(0, 200),
)
def test_each_wanted_id_is_found_in_each_segment_that_is_sought_and_has_it(
    segments: list[tuple[dict[tuple[str, int, int], int], int]],
    wanted: set[tuple[str, int, int]],
    cut: int,
    before_bucket: int,
    from_ms: int,
) -> None:
    whole = metadata(segments)
    read = [whole.slice(0, cut), whole.slice(min(cut, whole.num_rows))]
    found = pa.Table.from_batches(locating(ids_of(wanted), before_bucket, from_ms)(read), LOCATED_SCHEMA).to_pylist()
    expected = [
        (message_id, number)
        for number, (dues, _) in enumerate(segments)
        for message_id in dues
        if message_id in wanted and 10 + number < before_bucket and max(dues.values()) >= from_ms
    ]
    assert sorted((row["topic"], row["partition"], row["offset"]) for row in found) == sorted(
        message_id for message_id, _ in expected
    )
    places = {(row["topic"], row["partition"], row["offset"], row["bucket"] - 10): row for row in found}
    for message_id, number in expected:
        dues, bits = segments[number]
        row = places[(*message_id, number)]
        assert row["part"] == f"part-{number}"
        assert row["repeats"] == bool(number % 2)
        assert row["from_ms"] <= dues[message_id] <= row["until_ms"] < row["from_ms"] + (1 << bits)
        assert min(dues.values()) <= row["from_ms"]
        assert row["until_ms"] <= max(dues.values())


def test_a_damaged_bitmap_is_an_error_that_names_its_ids() -> None:
    row = metadata_row(0, {("in-a", 0, 5): 100}, 4)
    row["index_entries"][0]["offsets"] = b"\x01"
    damaged = pa.RecordBatch.from_pylist([row], schema=pa.schema([STORED_SCHEMA.field(name) for name in METADATA]))
    with pytest.raises(BucketUnreadable, match="in-a/0 due from 96 ms"):
        list(locating(ids_of([("in-a", 0, 5)]), 100, 0)([damaged]))


@given(segments=SEGMENTS, wanted=st.sets(ID, max_size=20), at_once=st.integers(1, 30))
def test_entries_by_themselves_have_the_same_ids_and_know_their_bounds(
    segments: list[tuple[dict[tuple[str, int, int], int], int]], wanted: set[tuple[str, int, int]], at_once: int
) -> None:
    whole, ids = metadata(segments), ids_of(wanted)
    with patch.object(locate, "_IDS_AT_ONCE", at_once):
        entries = pa.Table.from_batches(entries_of([whole]), ENTRY_SCHEMA)
    directly = pa.Table.from_batches(locating(ids, 100, 0)([whole]), LOCATED_SCHEMA)
    assert rows_of(located(entries, ids)) == rows_of(directly)
    for entry in entries.to_pylist():
        dues, _ = segments[entry["bucket"] - 10]
        own = {
            offset for topic, partition, offset in dues if (topic, partition) == (entry["topic"], entry["partition"])
        }
        assert {entry["first_offset"], entry["last_offset"]} <= own
        assert entry["max_deliver_at_ms"] == max(dues.values())


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((*row.values(),) for row in table.to_pylist())


@pytest.mark.parametrize("last", [(1 << 32) - 1, 1 << 32, (1 << 63) - 10])
def test_offsets_that_lie_far_apart_are_found(last: int) -> None:
    # Flags of 20 bits take the second for the first.
    offsets = [7, 7 + (1 << 20), 7 + last]
    whole = metadata([({("in-a", 0, offset): number for number, offset in enumerate(offsets)}, 4)] * 2)
    for offset in offsets:
        found = pa.Table.from_batches(locating(ids_of([("in-a", 0, offset)]), 100, 0)([whole]), LOCATED_SCHEMA)
        assert found.column("offset").to_pylist() == [offset] * 2
    assert not list(locating(ids_of([("in-a", 0, 8), ("in-a", 0, 7 + (1 << 21))]), 100, 0)([whole]))


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), min_size=1, max_size=12), st.integers(1, 5))
def test_spans_have_all_places_and_leave_out_the_largest_gaps(several: list[tuple[int, int]], most: int) -> None:
    rows = [{"from_ms": start, "until_ms": start + length} for start, length in several]
    spans = spans_of(pa.Table.from_pylist(rows), most)
    assert len(spans) <= most
    assert all(any(first <= start and start + length <= last for first, last in spans) for start, length in several)
    ends = [end for span in spans for end in span]
    assert ends == sorted(ends)
    covered = {at for start, length in several for at in range(start, start + length + 1)}
    assert all(first in covered and last in covered for first, last in spans)
    # Nothing that is left out is smaller than a gap within a span.
    left_out = [after - before for (_, before), (after, _) in pairwise(spans)]
    within = [
        after - before
        for first, last in spans
        for before, after in pairwise(sorted(covered & set(range(first, last + 1))))
    ]
    assert len(spans) == 1 or max(within, default=1) <= min(left_out) or max(within) == 1
