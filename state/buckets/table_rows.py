"""How a sealed segment is stored: its metadata and its messages as rows of one table.

With one table, a single commit stores a bucket: it exists whole, with its metadata, or not at all. Messages are stored
in the chunks in which they travel, so that sealing and loading cost the JVM a few rows instead of thousands. Metadata
rows are in separate partitions (`state.buckets.parts`), and are read without touching a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from state.buckets.parts import chunks_of, metadata_of, part_of
from state.buckets.segments import Segment
from state.index.message_index import index_entries
from state.kinds import repeats
from state.message import decode_chunk, encode_chunk
from state.order import key_of

# The unit of reading: small enough that a prefetch window of seconds does not load minutes, large enough that many
# messages share the cost of a chunk (0.1 ms).
CHUNK_MESSAGES = 2_000
# Rows are copied whole between the JVM and Python; a chunk of one message may be larger.
CHUNK_BYTES = 1024 * 1024

# With more entries in a segment's index, the metadata would be larger than the messages' ids. A Roaring bitmap of few
# offsets that lie far apart takes ten bytes or more for each offset, and one of a thousand offsets about three.
_SLOTS = 16
_MESSAGES_PER_ENTRY = 1024

# The entries that `state.index.message_index.index_entries` returns.
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

# Delta keeps bounds for the leading columns, so the columns that prune files and row groups come first.
STORED_SCHEMA = pa.schema(
    [
        # The Delta partition (`state.buckets.parts`).
        pa.field("part", pa.string()),
        pa.field("bucket", pa.int64()),
        pa.field("shard", pa.int32()),
        pa.field("segment", pa.int32()),
        # The due times of the first and the last message of the segment or chunk.
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("count", pa.int64()),
        # Metadata rows only, up to the index.
        pa.field("bytes", pa.int64()),
        # How many messages of the segment or chunk repeat.
        pa.field("repeats", pa.int64()),
        # Stored with the entries, since each segment has its own.
        pa.field("precision_bits", pa.int32()),
        pa.field("index_entries", _ENTRIES),
        # Chunks of messages or ids (`state.buckets.id_rows`): the id of the first one. With `deliver_at_ms` it is the
        # order key.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("chunk", pa.binary()),
    ]
)


def stored_rows(precision_bits: int) -> ArrowFunction:
    """Return the `mapInArrow` function that turns sealed segments into rows of `STORED_SCHEMA`.

    The input is rows of `state.buckets.operator.SHARD_OUTPUT_SCHEMA`. `precision_bits`: see `segment_rows`.
    """

    def run(sealed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in sealed:
            for row in batch.to_pylist():
                segment = Segment(**{name: row[name] for name in Segment.__dataclass_fields__})
                yield from segment_rows(segment, decode_chunk(row["chunk"]), precision_bits)

    return run


def segment_rows(segment: Segment, messages: pa.Table, precision_bits: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one segment: its metadata, then `messages`, which are in delivery order, as chunks.

    An index time slot is 2^`precision_bits` ms long, or longer if the segment has few messages for its span.
    """
    precision_bits = _precision(segment, messages, precision_bits)
    identity = {"bucket": segment.bucket, "shard": segment.shard, "segment": segment.segment}
    metadata = {
        **identity,
        "part": metadata_of(segment.part),
        "deliver_at_ms": segment.min_deliver_at_ms,
        "max_deliver_at_ms": segment.max_deliver_at_ms,
        "count": segment.count,
        "bytes": segment.bytes,
        "repeats": segment.repeats,
        "precision_bits": precision_bits,
        "index_entries": index_entries(messages, precision_bits),
    }
    yield pa.RecordBatch.from_pylist([metadata], schema=STORED_SCHEMA)
    for piece in split(messages):
        row = {
            **identity,
            **key_of(piece)._asdict(),
            "part": chunks_of(segment.part),
            "max_deliver_at_ms": piece.column("deliver_at_ms")[-1].as_py(),
            "count": piece.num_rows,
            "repeats": int(repeats(piece).sum()),
            "chunk": encode_chunk(piece),
        }
        yield pa.RecordBatch.from_pylist([row], schema=STORED_SCHEMA)


def described_segment(metadata: Mapping[str, Any]) -> Segment:
    """Return the segment that a metadata row describes."""
    return Segment(
        bucket=metadata["bucket"],
        shard=metadata["shard"],
        segment=metadata["segment"],
        part=part_of(metadata["part"]),
        min_deliver_at_ms=metadata["deliver_at_ms"],
        max_deliver_at_ms=metadata["max_deliver_at_ms"],
        count=metadata["count"],
        bytes=metadata["bytes"],
        repeats=metadata["repeats"],
    )


def _precision(segment: Segment, messages: pa.Table, least_bits: int) -> int:
    """Return the precision of a segment's index entries: at least `least_bits`.

    There is an entry for each time slot and input partition. With `_MESSAGES_PER_ENTRY` messages to an entry on
    average, it is about the size of the offsets, however far apart the messages are due. A small segment may have a few
    slots in any case.
    """
    sources = messages.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).num_rows
    slots = _SLOTS + segment.count // (_MESSAGES_PER_ENTRY * sources)
    span_ms = segment.max_deliver_at_ms - segment.min_deliver_at_ms
    bits: int = (span_ms // slots).bit_length()
    return max(least_bits, bits)


def split(messages: pa.Table) -> Iterable[pa.Table]:
    """Cut `messages` into pieces the size of a chunk."""
    per_message = max(1, messages.nbytes // max(1, messages.num_rows))
    step = max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // per_message))
    return (messages.slice(at, step) for at in range(0, messages.num_rows, step))
