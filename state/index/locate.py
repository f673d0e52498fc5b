"""Finding message ids in the metadata of sealed segments: in which segment each lies, and about when it is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from state.index.message_index import bitmap_of, stored_bitmap
from state.message_ids import Ids

LOCATED_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        # The Delta partition of the segment's metadata, and that of its chunks if the table is old.
        ("part", pa.string()),
        ("time_partition", pa.string()),
        ("bucket", pa.int64()),
        # The message is due in [from_ms, until_ms], epoch ms.
        ("from_ms", pa.int64()),
        ("until_ms", pa.int64()),
    ]
)
# What comes from the table.
_COPIED = ("part", "time_partition", "bucket")


def locating(ids: Ids) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the `mapInArrow` function that turns metadata rows into a row of `LOCATED_SCHEMA` for each id they have.

    The input has the columns part, time_partition, bucket, deliver_at_ms, max_deliver_at_ms, precision_bits, and
    index_entries, of which those of other input partitions may be left out.
    """
    wanted = {source: bitmap_of(offsets) for source, offsets in ids.items()}

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [_found(entry, row, wanted) for row in batch.to_pylist() for entry in row["index_entries"]]
            yield from pa.Table.from_batches(filter(None, found), LOCATED_SCHEMA).combine_chunks().to_batches()

    return run


def _found(
    entry: dict[str, Any], row: dict[str, Any], wanted: dict[tuple[str, int], BitMap64]
) -> pa.RecordBatch | None:
    source = entry["topic"], entry["partition"]
    if source not in wanted:
        return None
    offsets = stored_bitmap(entry) & wanted[source]
    if not offsets:
        return None
    numbers = np.frombuffer(offsets.to_array(), dtype=np.int64)
    same = {name: row[name] for name in _COPIED} | {
        "topic": source[0],
        "partition": source[1],
        "from_ms": max(row["deliver_at_ms"], entry["tick_ms"]),
        "until_ms": min(row["max_deliver_at_ms"], entry["tick_ms"] + (1 << row["precision_bits"]) - 1),
    }
    columns = [
        numbers if field.name == "offset" else pa.repeat(pa.scalar(same[field.name], field.type), len(numbers))
        for field in LOCATED_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOCATED_SCHEMA)
