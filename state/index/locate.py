"""Finding message ids in the metadata of sealed segments: in which segment each lies, and about when it is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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
_NO_OFFSETS = np.empty(0, dtype=np.int64)


def locating(
    ids: Ids, before_bucket: int, from_ms: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the `mapInArrow` function that turns metadata rows into a row of `LOCATED_SCHEMA` for each id they have.

    It passes over the segments of buckets that do not come before `before_bucket`, and those whose last message is due
    before `from_ms` (epoch ms). Spark could filter them, but these numbers would be in the code that it writes: each
    batch would cost Java the compilation of its own.

    The input has the columns part, time_partition, bucket, deliver_at_ms, max_deliver_at_ms, precision_bits, and
    index_entries, of which those of other input partitions may be left out.
    """
    wanted = {source: bitmap_of(offsets) for source, offsets in ids.items()}

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_before = pc.less(batch.column("bucket"), before_bucket)
            is_late = pc.greater_equal(batch.column("max_deliver_at_ms"), from_ms)
            yield from _located(batch.filter(pc.and_(is_before, is_late)), wanted).to_batches()

    return run


def _located(segments: pa.RecordBatch, wanted: Mapping[tuple[str, int], BitMap64]) -> pa.Table:
    """Return a row of `LOCATED_SCHEMA` for each id that is wanted and that `segments` have.

    Column by column for all entries at once: with ids at random nearly each entry has a few of them, and a table for
    each would cost ten times the search in its bitmap.
    """
    entries = segments.column("index_entries")
    own = entries.flatten()
    found = [_found(entry, wanted) for entry in own.to_pylist()]
    counts = np.fromiter(map(len, found), np.int64, len(found))
    entry = np.repeat(np.arange(len(found)), counts)
    row = pc.list_parent_indices(entries).to_numpy()[entry]
    ticks_ms = pc.struct_field(own, "tick_ms").to_numpy()[entry]
    first_ms, last_ms, bits = (
        segments.column(name).to_numpy()[row] for name in ("deliver_at_ms", "max_deliver_at_ms", "precision_bits")
    )
    columns = {
        "topic": pc.struct_field(own, "topic").take(entry),
        "partition": pc.struct_field(own, "partition").take(entry),
        "offset": np.concatenate([_NO_OFFSETS, *found]),
        **{name: segments.column(name).take(pa.array(row)) for name in ("part", "time_partition", "bucket")},
        "from_ms": np.maximum(first_ms, ticks_ms),
        "until_ms": np.minimum(last_ms, ticks_ms + (1 << bits.astype(np.int64)) - 1),
    }
    return pa.table(columns).cast(LOCATED_SCHEMA)


def _found(entry: Mapping[str, Any], wanted: Mapping[tuple[str, int], BitMap64]) -> npt.NDArray[np.int64]:
    """Return the offsets of one of `index_entries` that are wanted."""
    own = wanted.get((entry["topic"], entry["partition"]))
    if own is None:
        return _NO_OFFSETS
    return np.frombuffer((stored_bitmap(entry) & own).to_array(), dtype=np.int64)
