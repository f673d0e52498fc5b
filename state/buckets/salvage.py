"""Salvaging segments: when a file of the table is damaged or lost, rebuilds them from the chunks that can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa

from state.buckets.parts import part_of
from state.buckets.segments import segment_of
from state.buckets.table_rows import ArrowFunction, segment_rows
from state.message import decode_chunk

# A segment's identity in the table.
IDENTITY = ("bucket", "shard", "segment")
COUNTED_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("part", pa.string()),
        pa.field("bucket", pa.int64()),
        pa.field("shard", pa.int32()),
        pa.field("segment", pa.int32()),
        pa.field("rows", pa.int64()),
        pa.field("messages", pa.int64()),
    ]
)


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: count the messages that can be read in each row of the table; `rows` is 0 for a damaged chunk.

    The input has the columns file, part, `IDENTITY`, count, and chunk, which is null in a metadata row.
    """
    for batch in batches:
        counts = []
        for row in batch.to_pylist():
            messages = None if row["chunk"] is None else readable(row["chunk"], row["count"])
            intact = row["chunk"] is None or messages is not None
            names = {name: row[name] for name in ("file", "part", *IDENTITY)}
            counts.append({**names, "rows": int(intact), "messages": 0 if messages is None else messages.num_rows})
        yield pa.RecordBatch.from_pylist(counts, schema=COUNTED_SCHEMA)


def intact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: leave out the rows of the table (`table_rows.STORED_SCHEMA`) with a damaged chunk."""
    for batch in batches:
        chunks = zip(batch.column("chunk").to_pylist(), batch.column("count").to_pylist(), strict=True)
        yield batch.filter(pa.array([chunk is None or readable(chunk, count) is not None for chunk, count in chunks]))


def readable(chunk: bytes, count: int) -> pa.Table | None:
    """Return the messages of a chunk, or None if it is damaged. `count` is the number of messages it must have."""
    try:
        messages = decode_chunk(chunk)
        messages.validate(full=True)
    except (pa.ArrowException, OSError):
        return None
    return messages if messages.num_rows == count else None


def salvaged(precision_bits: int) -> ArrowFunction:
    """Return the `mapInArrow` function that rebuilds segments from their chunks, as `table_rows.STORED_SCHEMA`.

    The input is rows of chunks (part, `IDENTITY`, count, chunk), sorted by `IDENTITY` and then in delivery order.
    Damaged chunks are left out, and the metadata describes the rest. An index time slot is 2^`precision_bits` ms long.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for (bucket, shard, number), own in groupby(rows, key=lambda row: tuple(row[name] for name in IDENTITY)):
            chunks = list(own)
            messages = _messages(chunks)
            if messages is not None:
                segment = segment_of(messages, bucket, shard, number, part_of(chunks[0]["part"]))
                yield from segment_rows(segment, messages, precision_bits)

    return run


def _messages(rows: Iterable[dict[str, Any]]) -> pa.Table | None:
    chunks = [readable(row["chunk"], row["count"]) for row in rows]
    intact = [chunk for chunk in chunks if chunk is not None]
    return pa.concat_tables(intact) if intact else None
