from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from state.buckets.operator import SHARD_OUTPUT_SCHEMA
from state.buckets.segments import cut
from state.buckets.table_rows import CHUNK_MESSAGES, METADATA_PART, STORED_SCHEMA, stored_rows
from state.message import decode_chunk, encode_chunk
from state.order import in_order
from tests.messages import headers, messages, some_batch_settings

BITS = 11
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
    """The stored rows of a bucket of six segments, whose sealed rows arrive in two batches."""
    batch_settings = some_batch_settings(segment_max_messages=5, bucket_max_bytes=10**8)
    sealed_rows = [
        {**asdict(segment), "kind": "sealed", "chunk": encode_chunk(rows)}
        for segment, rows in cut(sealed, 4, 1, 0, batch_settings)
    ]
    batches = [
        pa.RecordBatch.from_pylist(part, schema=SHARD_OUTPUT_SCHEMA) for part in (sealed_rows[:4], sealed_rows[4:])
    ]
    return pa.Table.from_batches(stored_rows(BITS)(iter(batches)), schema=STORED_SCHEMA)


def in_chunk(row: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_chunk(row["chunk"]).to_pylist()
    return rows


def test_every_message_is_stored_as_it_was_in_order_and_once(stored: pa.Table, sealed: pa.Table) -> None:
    chunks = [row for row in stored.to_pylist() if row["part"] != METADATA_PART]
    assert [message for row in chunks for message in in_chunk(row)] == sealed.to_pylist()


def test_a_chunk_has_the_key_of_its_first_message_and_the_due_time_of_its_last(stored: pa.Table) -> None:
    for row in stored.to_pylist():
        if row["part"] != METADATA_PART:
            first, *_, last = [in_chunk(row)[0], *in_chunk(row)]
            key = ("deliver_at_ms", "topic", "partition", "offset")
            assert [row[name] for name in key] == [first[name] for name in key]
            assert (row["max_deliver_at_ms"], row["count"]) == (last["deliver_at_ms"], len(in_chunk(row)))


def test_each_segment_has_one_metadata_row_that_describes_its_messages(stored: pa.Table) -> None:
    rows = stored.to_pylist()
    metadata = [row for row in rows if row["part"] == METADATA_PART]
    assert [row["segment"] for row in metadata] == list(range(6))
    for described in metadata:
        chunks = [row for row in rows if row["part"] != METADATA_PART and row["segment"] == described["segment"]]
        assert {row["part"] for row in chunks} == {described["time_partition"]}
        for name in ("bucket", "shard"):
            assert {row[name] for row in chunks} == {described[name]}
        messages_of = [message for row in chunks for message in in_chunk(row)]
        assert described["deliver_at_ms"] == messages_of[0]["deliver_at_ms"]
        assert described["max_deliver_at_ms"] == messages_of[-1]["deliver_at_ms"]
        assert described["count"] == len(messages_of)


def test_the_metadata_lists_every_id_of_its_segment_with_its_time_slot(stored: pa.Table) -> None:
    rows = stored.to_pylist()
    for described in (row for row in rows if row["part"] == METADATA_PART):
        chunks = [row for row in rows if row["part"] != METADATA_PART and row["segment"] == described["segment"]]
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
    chunks = [row for row in stored.to_pylist() if row["part"] != METADATA_PART]
    assert {(row["precision_bits"], row["index_entries"]) for row in chunks} == {(None, None)}


def test_a_large_segment_is_stored_in_chunks_of_bounded_length_and_bytes() -> None:
    def chunk_counts(count: int, value: bytes) -> list[int]:
        many = messages({"deliver_at_ms": 1, "offset": offset, "value": value} for offset in range(count))
        row: dict[str, Any] = dict.fromkeys(SHARD_OUTPUT_SCHEMA.names, 0) | {"kind": "sealed", "time_partition": ""}
        row["chunk"] = encode_chunk(many)
        sealed_batch = pa.RecordBatch.from_pylist([row], schema=SHARD_OUTPUT_SCHEMA)
        batches = list(stored_rows(BITS)(iter([sealed_batch])))
        assert all(batch.schema == STORED_SCHEMA for batch in batches)
        return [batch.column("count")[0].as_py() for batch in batches[1:]]

    assert chunk_counts(2 * CHUNK_MESSAGES + 1, b"v") == [CHUNK_MESSAGES, CHUNK_MESSAGES, 1]
    assert chunk_counts(5, bytes(500_000)) == [2, 2, 1]
    assert chunk_counts(2, bytes(5_000_000)) == [1, 1]
