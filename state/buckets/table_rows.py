"""The snapshot as stored: the rows that a sealed segment becomes, messages and metadata in one table.

One table, so that one commit makes a bucket: it exists whole, with its metadata, or not at all. Messages are
stored as they travel, in chunks, so that sealing and loading them costs the JVM a few rows and not thousands.
The metadata rows lie in a part of their own and are read without touching a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from state.buckets.segments import Segment
from state.index.message_index import index_entries
from state.message import decode_chunk, encode_chunk
from state.order import key_of

METADATA_PART = "metadata"

# What is read to get at one message: small enough that a window of seconds does not load minutes, large enough
# that a chunk's own cost (0.1 ms) is shared by many.
CHUNK_MESSAGES = 2_000
# Rows are copied whole between the JVM and Python; a chunk of one message may be larger.
CHUNK_BYTES = 1024 * 1024

# What `state.index.message_index.index_entries` gives.
_ENTRIES = pa.list_(
    pa.struct(
        [
            pa.field("tick_ms", pa.int64()),
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("count", pa.int64()),
            pa.field("offsets", pa.binary()),
        ]
    )
)

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# The columns that files and row groups are pruned by come first: Delta keeps bounds for the leading ones.
STORED_SCHEMA = pa.schema(
    [
        # The Delta partition: the time partition of a chunk, `METADATA_PART` for all metadata.
        pa.field("part", pa.string()),
        pa.field("bucket", pa.int64()),
        pa.field("shard", pa.int32()),
        pa.field("segment", pa.int32()),
        # Of the segment, or of the chunk: its first message's, and its last one's.
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("count", pa.int64()),
        # Of metadata rows.
        pa.field("bytes", pa.int64()),
        pa.field("time_partition", pa.string()),
        # Beside the entries, since the setting may be another by now.
        pa.field("precision_bits", pa.int32()),
        pa.field("index_entries", _ENTRIES),
        # Of chunks: the id of the first message, which with `deliver_at_ms` is its place in the order.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("chunk", pa.binary()),
    ]
)


def stored_rows(precision_bits: int) -> ArrowFunction:
    """Return the function for `mapInArrow` that makes rows of `STORED_SCHEMA` of sealed segments.

    It takes rows of `state.buckets.operator.SHARD_OUTPUT_SCHEMA`. Ticks of the index are 2^`precision_bits` ms.
    """

    def run(sealed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in sealed:
            for held in batch.to_pylist():
                segment = Segment(**{name: held[name] for name in Segment.__dataclass_fields__})
                yield from segment_rows(segment, decode_chunk(held["chunk"]), precision_bits)

    return run


def segment_rows(segment: Segment, messages: pa.Table, precision_bits: int) -> Iterator[pa.RecordBatch]:
    """Give the rows of one segment: its metadata, and `messages`, which are in delivery order, as chunks."""
    marks = {"bucket": segment.bucket, "shard": segment.shard, "segment": segment.segment}
    metadata = {
        **marks,
        "part": METADATA_PART,
        "deliver_at_ms": segment.min_deliver_at_ms,
        "max_deliver_at_ms": segment.max_deliver_at_ms,
        "count": segment.count,
        "bytes": segment.bytes,
        "time_partition": segment.time_partition,
        "precision_bits": precision_bits,
        "index_entries": index_entries(messages, precision_bits),
    }
    yield pa.RecordBatch.from_pylist([metadata], schema=STORED_SCHEMA)
    for piece in split(messages):
        row = {
            **marks,
            **key_of(piece)._asdict(),
            "part": segment.time_partition,
            "max_deliver_at_ms": piece.column("deliver_at_ms")[-1].as_py(),
            "count": piece.num_rows,
            "chunk": encode_chunk(piece),
        }
        yield pa.RecordBatch.from_pylist([row], schema=STORED_SCHEMA)


def described_segment(metadata: Mapping[str, Any]) -> Segment:
    """Return the segment that a metadata row stands for."""
    return Segment(
        **{name: metadata[name] for name in Segment.__dataclass_fields__ if name != "min_deliver_at_ms"},
        min_deliver_at_ms=metadata["deliver_at_ms"],
    )


def split(messages: pa.Table) -> Iterable[pa.Table]:
    """Cut messages into pieces of the size of a chunk."""
    per_message = max(1, messages.nbytes // max(1, messages.num_rows))
    step = max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // per_message))
    return (messages.slice(at, step) for at in range(0, messages.num_rows, step))
