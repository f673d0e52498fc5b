"""Segments rebuilt from their readable chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from state.buckets.parts import MergeName, is_metadata, sealed_part
from state.buckets.salvage import counted, readable, salvaged
from state.buckets.segments import cut
from state.buckets.table_rows import segment_rows
from state.message import decode_chunk, encode_chunk
from tests.messages import messages, some_batch_settings

BITS = 10
OLD_PART = "000000000000000-000000003600000"


def stored(*dues: int, part: str = sealed_part(7)) -> list[dict[str, Any]]:
    """Return the table rows of one bucket with a message due at each of `dues`, two to a segment, all in `part`."""
    sealed = messages([{"deliver_at_ms": due, "offset": due} for due in dues])
    rows = [
        row
        for segment, own in cut(sealed, 7, 1, some_batch_settings(segment_max_messages=2))
        for batch in segment_rows(replace(segment, part=part), own, BITS)
        for row in batch.to_pylist()
    ]
    return [{**row, "file": "f"} for row in rows]


def run(function: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("file", "part", "bucket", "shard", "segment", "count", "chunk")
    selected = [{name: row[name] for name in names} for row in rows]
    # One row to a batch, so that batches end between the chunks of a segment.
    batches = [pa.RecordBatch.from_pylist([row]) for row in selected]
    return [row for batch in function(iter(batches)) for row in batch.to_pylist()]


def chunks_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not is_metadata(row["part"])]


@pytest.mark.parametrize("part", [sealed_part(7), MergeName(5, 7, 3).part(2), OLD_PART])
def test_whole_segments_are_rebuilt_unchanged_and_in_their_part(part: str) -> None:
    rows = stored(1, 2, 3, part=part)
    rebuilt = run(salvaged(BITS), chunks_of(rows))
    assert rebuilt == [{name: value for name, value in row.items() if name != "file"} for row in rows]


def test_a_segment_with_a_damaged_chunk_keeps_its_other_chunks_with_new_metadata() -> None:
    first, second = (
        encode_chunk(messages({"deliver_at_ms": due, "offset": due} for due in dues)) for dues in ((1, 2), (3,))
    )
    common = {"file": "f", "part": f"chunks-{sealed_part(7)}", "bucket": 7, "shard": 1, "segment": 0}
    rows = [{**common, "count": 2, "chunk": first[:-40]}, {**common, "count": 1, "chunk": second}]
    metadata, chunk = run(salvaged(BITS), rows)
    assert (metadata["count"], metadata["deliver_at_ms"], metadata["max_deliver_at_ms"]) == (1, 3, 3)
    assert decode_chunk(chunk["chunk"]).column("offset").to_pylist() == [3]
    assert run(salvaged(BITS), rows[:1]) == []


def test_messages_are_counted_in_the_chunks_that_can_be_read() -> None:
    rows = stored(1, 2, 3)
    chunks_of(rows)[0]["chunk"] = b"\0" * 100
    counts = [(is_metadata(row["part"]), row["rows"], row["messages"]) for row in run(counted, rows)]
    assert counts == [(True, 1, 0), (False, 0, 0), (True, 1, 0), (False, 1, 1)]


def test_a_chunk_that_gives_another_number_of_messages_is_damaged() -> None:
    chunk = encode_chunk(messages([{"offset": 1}]))
    assert readable(chunk, 1) is not None
    assert readable(chunk, 2) is None
    assert readable(b"", 0) is None
