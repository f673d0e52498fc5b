from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from conf.message import encode_chunk, in_order
from state.segments import cut
from state.stored import METADATA, STORED_SCHEMA, stored_rows
from tests.messages import headers, messages, some_rules

HELD = pa.schema(
    [
        ("kind", pa.string()), ("shard", pa.int32()), ("bucket", pa.int64()), ("segment", pa.int32()),
        ("time_partition", pa.string()), ("min_deliver_at_ms", pa.int64()), ("max_deliver_at_ms", pa.int64()),
        ("count", pa.int64()), ("bytes", pa.int64()), ("chunk", pa.binary()),
    ]
)  # fmt: skip
CARRIED = (
    "deliver_at_ms", "topic", "partition", "offset", "timestamp_ms", "output_topic", "output_partition",
    "key", "value", "headers",
)  # fmt: skip
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
    """The rows of a bucket of six segments, whose held rows come in two batches."""
    rules = some_rules(segment_max_messages=5, bucket_max_bytes=10**8)
    held = [
        {**asdict(segment), "kind": "sealed", "chunk": encode_chunk(rows)}
        for segment, rows in cut(sealed, 4, 1, 0, rules)
    ]
    batches = [pa.RecordBatch.from_pylist(part, schema=HELD) for part in (held[:4], held[4:])]
    return pa.Table.from_batches(stored_rows(iter(batches)), schema=STORED_SCHEMA)


def test_every_message_is_stored_as_it_was_in_order_and_once(stored: pa.Table, sealed: pa.Table) -> None:
    kept = [row for row in stored.to_pylist() if row["kind"] == "message"]
    assert [{name: row[name] for name in CARRIED} for row in kept] == sealed.select(CARRIED).to_pylist()


def test_each_segment_has_one_metadata_row_that_describes_its_messages(stored: pa.Table) -> None:
    rows = stored.to_pylist()
    metadata = [row for row in rows if row["kind"] == METADATA]
    assert [row["segment"] for row in metadata] == list(range(6))
    for described in metadata:
        own = [row for row in rows if row["kind"] == "message" and row["segment"] == described["segment"]]
        for name in ("time_partition", "bucket", "shard"):
            assert {row[name] for row in own} == {described[name]}
        assert described["deliver_at_ms"] == own[0]["deliver_at_ms"]
        assert described["max_deliver_at_ms"] == own[-1]["deliver_at_ms"]
        assert described["count"] == len(own)
        ids = {
            (each["topic"], each["partition"], offset)
            for each in described["message_ids"]
            for offset in BitMap64.deserialize(each["offsets"])
        }
        assert ids == {(row["topic"], row["partition"], row["offset"]) for row in own}


def test_message_rows_say_nothing_of_metadata_and_the_other_way_round(stored: pa.Table) -> None:
    for row in stored.to_pylist():
        unset = ("topic", "offset", "key", "value", "headers") if row["kind"] == METADATA else ("count", "message_ids")
        assert all(row[name] is None for name in unset)


def test_large_segments_are_given_in_batches_of_bounded_length() -> None:
    many = messages({"deliver_at_ms": 1, "offset": offset} for offset in range(25_000))
    held = dict.fromkeys(HELD.names, 0) | {
        "kind": "sealed",
        "time_partition": "",
        "chunk": encode_chunk(many),
    }
    batches = list(stored_rows(iter([pa.RecordBatch.from_pylist([held], schema=HELD)])))
    assert [batch.num_rows for batch in batches] == [1, 10_000, 10_000, 5_000]
    assert all(batch.schema == STORED_SCHEMA for batch in batches)
