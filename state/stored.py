"""The snapshot as stored: the rows that a sealed segment becomes, messages and metadata in one table.

One table, so that one commit makes a bucket: it exists whole, with its metadata, or not at all. The
metadata rows lie in a partition of their own and are read without touching a message.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from conf.message import HEADERS, decode_chunk
from state.segments import message_ids

MESSAGE, METADATA = "message", "metadata"

_IDS = pa.list_(
    pa.struct([pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offsets", pa.binary())])
)

# The columns that files are pruned by come first: Delta keeps bounds for the leading ones.
STORED_SCHEMA = pa.schema(
    [
        pa.field("time_partition", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("bucket", pa.int64()),
        pa.field("shard", pa.int32()),
        pa.field("segment", pa.int32()),
        pa.field("deliver_at_ms", pa.int64()),
        # Of metadata rows.
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("message_ids", _IDS),
        # Of messages.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("output_topic", pa.string()),
        pa.field("output_partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)


def stored_rows(sealed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn sealed segments (rows of `state.adapter.HELD_SCHEMA`) into rows of `STORED_SCHEMA`."""
    for batch in sealed:
        for held in batch.to_pylist():
            messages = decode_chunk(held["chunk"])
            marks = {name: held[name] for name in ("time_partition", "bucket", "shard", "segment")}
            metadata = {
                **marks,
                "kind": METADATA,
                "deliver_at_ms": held["min_deliver_at_ms"],
                "max_deliver_at_ms": held["max_deliver_at_ms"],
                "count": held["count"],
                "bytes": held["bytes"],
                "message_ids": message_ids(messages),
            }
            yield from pa.Table.from_pylist([metadata], schema=STORED_SCHEMA).to_batches()
            yield from _as_stored(messages, {**marks, "kind": MESSAGE}).to_batches(max_chunksize=10_000)


def _as_stored(messages: pa.Table, marks: dict[str, object]) -> pa.Table:
    """Give `messages` the columns of `STORED_SCHEMA`, with `marks` the same on every row."""
    columns = []
    for column in STORED_SCHEMA:
        if column.name in marks:
            columns.append(pa.repeat(pa.scalar(marks[column.name], column.type), messages.num_rows))
        elif column.name in messages.column_names:
            columns.append(messages.column(column.name).cast(column.type))
        else:
            columns.append(pa.nulls(messages.num_rows, column.type))
    return pa.Table.from_arrays(columns, schema=STORED_SCHEMA)
