from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.message import decode_chunk, empty_messages, encode_chunk, split_by_bytes
from state.order import in_order
from tests.message_rows import ROWS
from tests.messages import messages
from tests.thorough import examples


@given(ROWS, st.data())
@settings(max_examples=examples(60))
def test_a_chunk_is_decoded_as_it_was_encoded(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    start, length = data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))
    table = messages(rows).slice(start, length)
    decoded = decode_chunk(encode_chunk(table))
    assert decoded.schema == table.schema
    assert decoded.to_pylist() == table.to_pylist()


def test_a_chunk_of_a_slice_contains_no_bytes_of_the_rest() -> None:
    large = messages({"value": bytes(100_000), "offset": offset} for offset in range(10))
    assert decode_chunk(encode_chunk(large.slice(0, 1))).nbytes < 110_000


def test_a_chunk_may_be_empty() -> None:
    assert decode_chunk(encode_chunk(empty_messages())) == empty_messages()


@given(ROWS, st.integers(0, 30))
@settings(max_examples=examples(60))
def test_order_is_by_due_time_then_topic_partition_and_offset(rows: list[dict[str, Any]], middle: int) -> None:
    table = messages(rows)
    chunked = pa.concat_tables([table.slice(0, middle), table.slice(middle)])
    expected = sorted(
        table.to_pylist(),
        key=lambda row: (row["deliver_at_ms"], row["topic"], row["partition"], row["offset"]),
    )
    positions = ["deliver_at_ms", "topic", "partition", "offset"]
    assert in_order(chunked).select(positions).to_pylist() == [
        {name: row[name] for name in positions} for row in expected
    ]


def test_large_offsets_are_ordered_as_numbers() -> None:
    offsets = [2**53 + 1, 2**53, 10, 9]
    ordered = in_order(messages({"offset": offset} for offset in offsets))
    assert ordered.column("offset").to_pylist() == sorted(offsets)


@given(ROWS, st.integers(1, 3000))
@settings(max_examples=examples(60))
def test_pieces_are_consecutive_and_none_is_empty(rows: list[dict[str, Any]], max_bytes: int) -> None:
    table = messages(rows)
    pieces = split_by_bytes(table, max_bytes)
    assert all(piece.num_rows for piece in pieces)
    assert [row for piece in pieces for row in piece.to_pylist()] == table.to_pylist()
    assert all(piece.num_rows == 1 or piece.nbytes <= 2 * max_bytes for piece in pieces)


def test_messages_of_one_size_are_split_into_pieces_of_about_the_limit() -> None:
    table = messages({"value": bytes(1000), "offset": offset} for offset in range(1000))
    sizes = [piece.nbytes for piece in split_by_bytes(table, 100_000)]
    assert len(sizes) == -(-table.nbytes // 100_000)
    assert max(sizes) < 105_000
