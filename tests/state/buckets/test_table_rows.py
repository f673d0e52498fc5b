from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from state.buckets.operator import SHARD_OUTPUT_SCHEMA
from state.buckets.parts import MergeName, is_metadata, sealed_part
from state.buckets.segments import ANY_SHARD, cut, segment_of
from state.buckets.table_rows import CHUNK_MESSAGES, STORED_SCHEMA, described_segment, segment_rows, stored_rows
from state.message import decode_chunk, encode_chunk
from state.order import in_order
from tests.messages import headers, messages, some_batch_settings
from tests.thorough import examples

BITS = 11
DAY_MS = 24 * 3_600_000
FIRST_MS = 1_798_000_000_000
CONTENTS: list[dict[str, Any]] = [
    {"key": None, "value": None, "headers": None},
    {"key": b"", "value": b"", "headers": headers()},
    {"key": b"\x00", "value": bytes(900_000), "headers": headers(("a", None), ("a", b"\x00"))},
]


@pytest.fixture(scope="module")
def sealed() -> pa.Table:
    return in_order(
        messages(
            {**CONTENTS[at % 3], "deliver_at_ms": at * 1000, "offset": at, "partition": at % 2} for at in range(30)
        )
    )


@pytest.fixture(scope="module")
def stored(sealed: pa.Table) -> pa.Table:
    """The stored rows of a bucket of six segments. Its sealed rows arrive in two batches."""
    batch_settings = some_batch_settings(segment_max_messages=5, bucket_max_bytes=10**8)
    sealed_rows = [
        {**asdict(segment), "kind": "sealed", "chunk": encode_chunk(rows)}
        for segment, rows in cut(sealed, 4, 1, batch_settings)
    ]
    batches = [
        pa.RecordBatch.from_pylist(part, schema=SHARD_OUTPUT_SCHEMA) for part in (sealed_rows[:4], sealed_rows[4:])
    ]
    return pa.Table.from_batches(stored_rows(BITS)(iter(batches)), schema=STORED_SCHEMA)


def in_chunk(row: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_chunk(row["chunk"]).to_pylist()
    return rows


def test_every_message_is_stored_as_it_was_in_order_and_once(stored: pa.Table, sealed: pa.Table) -> None:
    chunks = [row for row in stored.to_pylist() if not is_metadata(row["part"])]
    assert [message for row in chunks for message in in_chunk(row)] == sealed.to_pylist()


def test_a_chunk_has_the_key_of_its_first_message_and_the_due_time_of_its_last(stored: pa.Table) -> None:
    for row in stored.to_pylist():
        if not is_metadata(row["part"]):
            first, *_, last = [in_chunk(row)[0], *in_chunk(row)]
            key = ("deliver_at_ms", "topic", "partition", "offset")
            assert [row[name] for name in key] == [first[name] for name in key]
            assert (row["max_deliver_at_ms"], row["count"]) == (last["deliver_at_ms"], len(in_chunk(row)))


def test_each_segment_has_one_metadata_row_that_describes_its_messages(stored: pa.Table) -> None:
    rows = stored.to_pylist()
    metadata = [row for row in rows if is_metadata(row["part"])]
    assert [row["segment"] for row in metadata] == list(range(6))
    for described in metadata:
        chunks = [row for row in rows if not is_metadata(row["part"]) and row["segment"] == described["segment"]]
        assert described["part"] == "metadata-000000000004"
        assert {row["part"] for row in chunks} == {"chunks-000000000004"}
        for name in ("bucket", "shard"):
            assert {row[name] for row in chunks} == {described[name]}
        messages_of = [message for row in chunks for message in in_chunk(row)]
        assert described["deliver_at_ms"] == messages_of[0]["deliver_at_ms"]
        assert described["max_deliver_at_ms"] == messages_of[-1]["deliver_at_ms"]
        assert described["count"] == len(messages_of)


def test_the_metadata_lists_every_id_of_its_segment_with_its_time_slot(stored: pa.Table) -> None:
    rows = stored.to_pylist()
    for described in (row for row in rows if is_metadata(row["part"])):
        chunks = [row for row in rows if not is_metadata(row["part"]) and row["segment"] == described["segment"]]
        entries = [
            (each["topic"], each["partition"], offset, each["tick_ms"])
            for each in described["index_entries"]
            for offset in BitMap64.deserialize(each["offsets"])
        ]
        assert sorted(entries) == sorted(
            (each["topic"], each["partition"], each["offset"], each["deliver_at_ms"] >> BITS << BITS)
            for row in chunks
            for each in in_chunk(row)
        )
        assert sum(each["count"] for each in described["index_entries"]) == described["count"]
        assert described["precision_bits"] == BITS


def test_chunks_have_no_index_entries(stored: pa.Table) -> None:
    chunks = [row for row in stored.to_pylist() if not is_metadata(row["part"])]
    assert {(row["precision_bits"], row["index_entries"]) for row in chunks} == {(None, None)}


def test_a_large_segment_is_stored_in_chunks_of_bounded_length_and_bytes() -> None:
    def chunk_counts(count: int, value: bytes) -> list[int]:
        many = messages({"deliver_at_ms": 1, "offset": offset, "value": value} for offset in range(count))
        texts = {"kind": "sealed", "part": "", "by_topic": "{}", "accepted": "{}", "topic": ""}
        row: dict[str, Any] = dict.fromkeys(SHARD_OUTPUT_SCHEMA.names, 0) | texts
        row["chunk"] = encode_chunk(many)
        sealed_batch = pa.RecordBatch.from_pylist([row], schema=SHARD_OUTPUT_SCHEMA)
        batches = list(stored_rows(BITS)(iter([sealed_batch])))
        assert all(batch.schema == STORED_SCHEMA for batch in batches)
        return [batch.column("count")[0].as_py() for batch in batches[1:]]

    assert chunk_counts(2 * CHUNK_MESSAGES + 1, b"v") == [CHUNK_MESSAGES, CHUNK_MESSAGES, 1]
    assert chunk_counts(5, bytes(500_000)) == [2, 2, 1]
    assert chunk_counts(2, bytes(5_000_000)) == [1, 1]


@pytest.mark.parametrize(
    ("part", "metadata", "chunks"),
    [
        (sealed_part(9), "metadata-000000000009", "chunks-000000000009"),
        (MergeName(1, 9, 3).part(2), *(f"{of}-{MergeName(1, 9, 3)}-000002" for of in ("metadata", "chunks"))),
    ],
)
def test_a_segment_is_described_as_it_was_stored_whatever_the_form_of_its_part(
    part: str, metadata: str, chunks: str
) -> None:
    rows = messages({"deliver_at_ms": at, "offset": at} for at in range(3))
    segment = segment_of(rows, 9, ANY_SHARD, 4, part)
    described, chunk = (batch.to_pylist()[0] for batch in segment_rows(segment, rows, BITS))
    assert (described["part"], chunk["part"]) == (metadata, chunks)
    assert described_segment(described) == segment


# The precision of index entries


def entries_of(rows: pa.Table, bits: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the precision and the index entries in the metadata of one segment with the messages `rows`."""
    segment = segment_of(rows, 1, 0, 0, sealed_part(1))
    (metadata,) = next(iter(segment_rows(segment, rows, bits))).to_pylist()
    return metadata["precision_bits"], metadata["index_entries"]


def spread(count: int, span_ms: int, offsets: range | None = None) -> pa.Table:
    """Return messages spread at random over a span of due time, with random offsets, of one input partition."""
    seed = random.Random(1)
    dues = [FIRST_MS, FIRST_MS + span_ms, *(FIRST_MS + seed.randint(0, span_ms) for _ in range(count - 2))]
    ids = seed.sample(offsets or range(count), count)
    return in_order(messages({"deliver_at_ms": due, "offset": at} for due, at in zip(dues, ids, strict=True)))


@pytest.mark.parametrize("span_ms", [0, 1000, 60_000, 300_000])
def test_a_dense_segment_has_the_precision_of_the_setting(span_ms: int) -> None:
    # It has no more than 16 slots of 2^15 ms.
    assert entries_of(spread(1000, span_ms), 15)[0] == 15


@pytest.mark.parametrize("span_ms", [DAY_MS, 30 * DAY_MS, 366 * DAY_MS])
def test_a_sparse_segment_has_hundreds_of_messages_in_a_slot(span_ms: int) -> None:
    bits, entries = entries_of(spread(20_000, span_ms), 15)
    assert bits > 15
    # 16 slots, and one more for each 1,024 messages.
    assert len(entries) <= 16 + 20_000 // 1024
    # Half as long ones would be more.
    assert 2 * len(entries) > 16 + 20_000 // 1024


@given(
    st.lists(st.one_of(st.integers(0, 60_000), st.integers(0, 366 * DAY_MS)), min_size=1, max_size=300),
    st.integers(0, 31),
)
@settings(max_examples=examples(60))
def test_slots_are_as_short_as_the_setting_allows_and_no_more_than_the_messages_pay_for(
    dues: list[int], setting: int
) -> None:
    rows = in_order(messages({"deliver_at_ms": due, "offset": at} for at, due in enumerate(dues)))
    bits, entries = entries_of(rows, setting)
    slots, span_ms = 16, max(dues) - min(dues)
    assert bits >= setting
    assert bits == setting or span_ms >> bits < slots <= span_ms >> (bits - 1)
    assert all(entry["tick_ms"] % 2**bits == 0 for entry in entries)
    assert sum(entry["count"] for entry in entries) == len(dues)


def test_each_segment_of_a_bucket_has_its_own_precision() -> None:
    near = [{"deliver_at_ms": at, "offset": at} for at in range(100)]
    far = [{"deliver_at_ms": at * DAY_MS, "offset": at} for at in range(100, 200)]
    rows = [
        row
        for segment, own in cut(messages([*near, *far]), 1, 0, some_batch_settings(segment_max_messages=100))
        for batch in segment_rows(segment, own, 10)
        for row in batch.to_pylist()
        if is_metadata(row["part"])
    ]
    assert [row["precision_bits"] for row in rows] == [10, 29]


@pytest.mark.parametrize(
    ("offsets", "most_bytes"),
    [
        # An offset takes two bytes in a Roaring bitmap.
        (range(20_000), 2.5),
        # Each 65,536 offsets have a container of their own, with a header of 8 bytes for about eight offsets.
        (range(5_000_000), 4),
    ],
)
def test_ids_take_few_bytes_even_if_due_times_are_spread_over_a_year_in_no_order(
    offsets: range, most_bytes: float
) -> None:
    _, entries = entries_of(spread(20_000, 366 * DAY_MS, offsets), 15)
    stored = pa.array(entries, type=STORED_SCHEMA.field("index_entries").type.value_type)
    assert stored.nbytes < most_bytes * 20_000
