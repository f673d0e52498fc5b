from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.buckets.parts import sealed_part
from state.buckets.segments import ANY_SHARD, Segment, SegmentCutter, cut, row_bytes
from state.order import in_order
from state.stub import HEADER_BYTES
from tests.messages import headers, messages, some_batch_settings
from tests.thorough import examples

YEAR_MS = 366 * 24 * 3_600_000
FIRST_MS = 1_798_000_000_000
ROW = st.fixed_dictionaries(
    {
        "deliver_at_ms": st.one_of(st.integers(0, 30), st.integers(0, YEAR_MS)).map(lambda ms: FIRST_MS + ms),
        "topic": st.sampled_from(["in-a", "in-b"]),
        "partition": st.integers(0, 2),
        "key": st.one_of(st.none(), st.binary(max_size=5)),
        "value": st.one_of(st.none(), st.integers(0, 700).map(bytes)),
        "headers": st.sampled_from([None, headers(), headers(("a", None), ("bc", bytes(100)))]),
    }
)
SEALED = st.lists(ROW, max_size=40).map(
    lambda rows: in_order(messages({**row, "offset": offset} for offset, row in enumerate(rows)))
)
BATCH_SETTINGS = st.builds(
    some_batch_settings,
    segment_max_messages=st.integers(1, 40),
    bucket_max_bytes=st.one_of(st.integers(200, 3000), st.just(10**6)),
)


def cut_all(sealed: pa.Table, batch_settings: Any) -> list[tuple[Segment, pa.Table]]:
    return list(cut(sealed, bucket=5, shard=1, batch_settings=batch_settings))


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=examples(100))
def test_segments_cover_every_message_in_order_and_once(sealed: pa.Table, batch_settings: Any) -> None:
    segments = cut_all(sealed, batch_settings)
    assert [row for _, rows in segments for row in rows.to_pylist()] == sealed.to_pylist()
    assert [(each.bucket, each.shard, each.segment) for each, _ in segments] == [
        (5, 1, number) for number in range(len(segments))
    ]
    assert {each.part for each, _ in segments} <= {sealed_part(5)}


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=examples(100))
def test_no_segment_exceeds_a_limit(sealed: pa.Table, batch_settings: Any) -> None:
    for segment, rows in cut_all(sealed, batch_settings):
        assert 1 <= rows.num_rows <= batch_settings.segment_max_messages
        assert rows.num_rows == 1 or _content(rows) <= segment.bytes <= batch_settings.bucket_max_bytes


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=examples(100))
def test_a_segment_ends_only_where_a_limit_ends_it_however_far_apart_messages_are_due(
    sealed: pa.Table, batch_settings: Any
) -> None:
    for (segment, rows), (_, following) in pairwise(cut_all(sealed, batch_settings)):
        full = rows.num_rows == batch_settings.segment_max_messages
        first = following.slice(0, 1)
        assert full or segment.bytes + _counted(first) > batch_settings.bucket_max_bytes


@given(SEALED, BATCH_SETTINGS, st.lists(st.integers(1, 15), max_size=8))
@settings(max_examples=examples(100))
def test_messages_that_come_in_pieces_are_cut_as_if_they_came_at_once(
    sealed: pa.Table, batch_settings: Any, lengths: list[int]
) -> None:
    cutter = SegmentCutter(5, ANY_SHARD, "p", count(7), batch_settings)
    segments: list[tuple[Segment, pa.Table]] = []
    at = 0
    for length in lengths:
        segments += cutter.add(sealed.slice(at, length))
        at += length
    segments += [*cutter.add(sealed.slice(at)), *cutter.finish()]
    whole = SegmentCutter(5, ANY_SHARD, "p", count(7), batch_settings)
    assert segments == [*whole.add(sealed), *whole.finish()]
    assert [rows.num_rows for _, rows in segments] == [rows.num_rows for _, rows in cut_all(sealed, batch_settings)]


@given(SEALED, BATCH_SETTINGS)
@settings(max_examples=examples(100))
def test_metadata_matches_the_messages(sealed: pa.Table, batch_settings: Any) -> None:
    for segment, rows in cut_all(sealed, batch_settings):
        due = rows.column("deliver_at_ms").to_pylist()
        assert (segment.min_deliver_at_ms, segment.max_deliver_at_ms, segment.count) == (
            due[0],
            due[-1],
            len(due),
        )
        assert segment.bytes == _counted(rows)


def _counted(rows: pa.Table) -> int:
    """Return the bytes of keys, values and headers, plus the fixed bytes of each message and header."""
    lists = [each or [] for each in rows.column("headers").to_pylist()]
    return int(_content(rows) + 64 * rows.num_rows + HEADER_BYTES * sum(map(len, lists)))


def _content(rows: pa.Table) -> int:
    """Return the bytes of keys, values and headers."""
    parts = [[row["key"], row["value"]] for row in rows.to_pylist()]
    parts += [[each["key"], each["value"]] for row in rows.to_pylist() for each in row["headers"] or []]
    return sum(len(part or b"") for pair in parts for part in pair)


def test_a_cut_continues_across_the_chunks_and_offset_of_a_table() -> None:
    table = messages({"deliver_at_ms": FIRST_MS + at, "offset": at, "headers": headers(("a", b"1"))} for at in range(9))
    sealed = pa.concat_tables([table.slice(1, 3), table.slice(4)])
    batch_settings = some_batch_settings(segment_max_messages=4)
    assert [rows.column("offset").to_pylist() for _, rows in cut_all(sealed, batch_settings)] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]


def test_without_sealed_messages_there_is_no_segment() -> None:
    assert cut_all(messages([]), some_batch_settings()) == []


def test_many_empty_headers_count_as_the_memory_that_they_take() -> None:
    table = messages([{"deliver_at_ms": FIRST_MS, "headers": headers(*[("", b"")] * 50_000)}])
    counted = int(row_bytes(table)[0])
    assert 0.9 < counted / table.nbytes < 1.1


def test_the_text_of_an_error_counts() -> None:
    table = messages([{"deliver_at_ms": FIRST_MS, "error_code": "c", "error_text": "x" * 1000}])
    assert row_bytes(table).tolist()[0] > 1000
