"""How the ids of messages that were cancelled, or have a name, are stored: in chunks, as rows of the bucket table.

A row for each id would cost the JVM more than everything else that is done for the id. So a row has a chunk of ids,
with the bounds of their due times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.parts import IdRows
from state.buckets.table_rows import CHUNK_MESSAGES, STORED_SCHEMA, ArrowFunction
from state.chunk_merge import merge
from state.message import decode_chunk, encode_chunk
from state.order import ORDER, OrderKey, in_order, key_of, keys_of

# An id, with the data stored about it. `deliver_at_ms` is negative for an id that no window may take.
ID_ROW_SCHEMA = pa.schema(
    [
        # The bucket of the batch that stored the id.
        pa.field("bucket", pa.int64()),
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("max_deliver_at_ms", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("name", pa.binary()),
        # For names only (`state.names.NAMED_SCHEMA`).
        pa.field("keeps", pa.bool_()),
    ]
)
# The columns of the table's rows that have ids: the order key of the first, and the chunk.
STORED_IDS = (*ORDER, "chunk")
Columns = Mapping[str, pa.Array | pa.ChunkedArray]


def id_rows(kind: IdRows, bucket: int, columns: Columns) -> pa.Table:
    """Return the rows of `STORED_SCHEMA` with the ids of a `kind` that the batch that seals `bucket` stores.

    `columns` has the columns of `ID_ROW_SCHEMA` except the bucket. The columns for names may be missing.
    """
    rows = packed_ids(kind, bucket)(in_order(id_table(bucket, columns)).combine_chunks().to_batches())
    return pa.Table.from_batches(rows, STORED_SCHEMA)


def id_table(bucket: int, columns: Columns) -> pa.Table:
    """Return the same ids as a table of `ID_ROW_SCHEMA`."""
    count = len(columns["offset"])
    every = {
        "name": pa.nulls(count, pa.binary()),
        "keeps": pa.nulls(count, pa.bool_()),
        **columns,
        "bucket": pa.array([bucket] * count, pa.int64()),
    }
    return pa.table([every[name] for name in ID_ROW_SCHEMA.names], names=ID_ROW_SCHEMA.names).cast(ID_ROW_SCHEMA)


def packed_ids(kind: IdRows, bucket: int) -> ArrowFunction:
    """Return the `mapInArrow` function that packs ids (`ID_ROW_SCHEMA`, in order) into rows of `STORED_SCHEMA`.

    The rows belong to the Delta partition of `bucket`.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for ids in _pieces(pa.Table.from_batches([batch])):
                row = {
                    **key_of(ids)._asdict(),
                    "part": kind.partition(bucket),
                    # A reader can skip the chunk by its bucket and due times alone.
                    "bucket": pc.min(ids.column("bucket")).as_py(),
                    "max_deliver_at_ms": pc.max(ids.column("max_deliver_at_ms")).as_py(),
                    "count": ids.num_rows,
                    "chunk": encode_chunk(ids),
                }
                yield pa.RecordBatch.from_pylist([row], schema=STORED_SCHEMA)

    return run


def unpacked_ids(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows with the columns `STORED_IDS` into ids (`ID_ROW_SCHEMA`): for `mapInArrow`."""
    for batch in batches:
        for _, ids in _unpacked(batch):
            yield from ids.to_batches()


def joined_ids(kind: IdRows, bucket: int, is_kept: Callable[[pa.Table], npt.NDArray[np.bool_]]) -> ArrowFunction:
    """Return the `mapInArrow` function that joins rows with the columns `STORED_IDS`, which are in order.

    The joined rows belong to the Delta partition of `bucket`. `is_kept` says which of some ids (`ID_ROW_SCHEMA`) stay.
    All rows are in one task, and few chunks in its memory.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chunks = ((key, ids) for batch in batches for key, ids in _unpacked(batch))
        kept = (ids.filter(pa.array(is_kept(ids))) for ids in merge(chunks))
        yield from packed_ids(kind, bucket)(batch for ids in kept for batch in ids.combine_chunks().to_batches())

    return run


def _unpacked(rows: pa.RecordBatch) -> Iterator[tuple[OrderKey, pa.Table]]:
    """Yield the ids in rows with the columns `STORED_IDS`, with the key of the first: one chunk after the other."""
    for key, chunk in zip(keys_of(rows), rows.column("chunk"), strict=True):
        yield key, decode_chunk(chunk.as_py())


def _pieces(ids: pa.Table) -> Iterator[pa.Table]:
    """Cut ids, which are in order, into pieces the size of a chunk."""
    # Ids that no window may take are packed apart, so that the bounds of the others are closer.
    first = int(np.searchsorted(ids.column("deliver_at_ms").to_numpy(), 0))
    for several in (ids.slice(0, first), ids.slice(first)):
        for at in range(0, several.num_rows, CHUNK_MESSAGES):
            yield several.slice(at, CHUNK_MESSAGES)
