"""The merge against one sort of all messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from state.chunk_merge import merge
from state.order import OrderKey, in_order
from tests.messages import messages
from tests.thorough import examples

KEY = st.builds(OrderKey, st.integers(0, 6), st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 40))
# Each chunk is in order, and no message is in two.
CHUNKS = st.lists(KEY, unique_by=lambda key: key[1:], max_size=60).flatmap(
    lambda keys: st.lists(st.integers(0, 5), min_size=len(keys), max_size=len(keys)).map(
        lambda chunk_numbers: [
            sorted(p for p, c in zip(keys, chunk_numbers, strict=True) if c == chunk) for chunk in range(6)
        ]
    )
)


def table(keys: list[OrderKey]) -> pa.Table:
    return in_order(messages(key._asdict() for key in keys))


def keyed(chunks: list[list[Any]]) -> Iterator[tuple[OrderKey, pa.Table]]:
    for chunk in sorted(chunk for chunk in chunks if chunk):
        yield chunk[0], table(chunk)


@given(CHUNKS)
@settings(max_examples=examples(200))
def test_every_message_is_emitted_once_and_in_order(chunks: list[list[Any]]) -> None:
    pieces = list(merge(keyed(chunks), piece_bytes=1))
    assert all(piece.num_rows for piece in pieces)
    everything = table([key for chunk in chunks for key in chunk])
    assert [row for piece in pieces for row in piece.to_pylist()] == everything.to_pylist()


def test_of_adjacent_chunks_no_more_than_one_is_buffered() -> None:
    taken = 0

    def chunks() -> Iterator[tuple[OrderKey, pa.Table]]:
        nonlocal taken
        for start in range(0, 100, 10):
            taken += 1
            yield OrderKey(start, "a", 0, 0), table([OrderKey(start + at, "a", 0, 0) for at in range(10)])

    # A piece is known to be complete when the next chunk is seen.
    assert [(piece.num_rows, taken) for piece in merge(chunks(), piece_bytes=1)] == [
        *((10, n) for n in range(2, 11)),
        (10, 10),
    ]


def test_messages_of_one_millisecond_are_ordered_by_their_ids() -> None:
    chunks = [
        (OrderKey(5, "a", 0, at), table([OrderKey(5, "a", 0, at), OrderKey(5, "a", 0, at + 1)]))
        for at in range(0, 40, 2)
    ]
    assert [piece.num_rows for piece in merge(chunks, piece_bytes=1)] == [2] * 20


def test_empty_chunks_give_no_piece() -> None:
    assert list(merge([(OrderKey(0, "a", 0, 0), table([])), (OrderKey(1, "a", 0, 0), table([]))])) == []
    assert list(merge([])) == []
