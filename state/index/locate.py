"""Finding message ids in the metadata of sealed segments: in which segment each lies, and about when it is due.

An *entry* is one of a segment's `index_entries` as a row of its own, with the necessary fields of the segment. Its
offsets are plain numbers there (`ENTRY_SCHEMA`): looking for an id in a thousand bitmaps takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.index.message_index import stored_offsets
from state.message_ids import Ids, are_in, by_source

_SEGMENT = [
    # The Delta partition of the segment's metadata.
    pa.field("part", pa.string()),
    pa.field("bucket", pa.int64()),
    # The message is due in [from_ms, until_ms], epoch ms.
    pa.field("from_ms", pa.int64()),
    pa.field("until_ms", pa.int64()),
    # Whether any message of the segment repeats.
    pa.field("repeats", pa.bool_()),
]
LOCATED_SCHEMA = pa.schema(
    [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64()), *_SEGMENT]
)
ENTRY_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        *_SEGMENT,
        # When the last message of the segment is due, epoch ms.
        pa.field("max_deliver_at_ms", pa.int64()),
        # The bounds of the offsets.
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        # The offsets, ascending, above the first one: 32-bit numbers, or 64-bit if the last one does not fit.
        pa.field("offsets", pa.binary()),
    ]
)
# The columns of a metadata row that make its entries.
METADATA = (
    "part", "bucket", "deliver_at_ms", "max_deliver_at_ms", "repeats", "precision_bits", "index_entries",
)  # fmt: skip
_MOST_NARROW = (1 << 32) - 1
# About how many ids are searched at once: each takes 20 bytes meanwhile.
_IDS_AT_ONCE = 1_000_000
# A flag for each of so many numbers, which stay in the processor's cache.
_FLAGS = 1 << 20
_Int64s = npt.NDArray[np.int64]


def locating(
    ids: Ids, before_bucket: int, from_ms: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the `mapInArrow` function that turns metadata rows into a row of `LOCATED_SCHEMA` for each id they have.

    It skips the segments of buckets that do not come before `before_bucket`, and segments with all messages due before
    `from_ms` (epoch ms). The input has the columns `METADATA`. Index entries of other input partitions may be left out.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_before = pc.less(batch.column("bucket"), before_bucket)
            is_late = pc.greater_equal(batch.column("max_deliver_at_ms"), from_ms)
            for entries in entries_of([batch.filter(pc.and_(is_before, is_late))]):
                yield from located(pa.Table.from_batches([entries]), ids).to_batches()

    return run


def entries_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn metadata rows, which have the columns `METADATA`, into rows of `ENTRY_SCHEMA`: for `mapInArrow`."""
    for batch in batches:
        for segments in _in_pieces(batch):
            yield from _entries(segments).to_batches()


def located(entries: pa.Table, ids: Ids) -> pa.Table:
    """Return a row of `LOCATED_SCHEMA` for each of `ids` that `entries` (`ENTRY_SCHEMA`) have."""
    several = [LOCATED_SCHEMA.empty_table()]
    for source, rows in by_source(entries):
        if (wanted := ids.get(source)) is None:
            continue
        own = entries.take(pa.array(rows))
        offsets, lengths = offsets_of(own)
        at = _places_of(wanted, offsets)
        entry = pa.array(np.repeat(np.arange(len(lengths)), lengths)[at])
        columns = {name: own.column(name).take(entry) for name in LOCATED_SCHEMA.names if name != "offset"}
        columns["offset"] = pa.chunked_array([offsets[at]])
        several.append(pa.table([columns[name] for name in LOCATED_SCHEMA.names], schema=LOCATED_SCHEMA))
    return pa.concat_tables(several)


def spans_of(places: pa.Table, most: int = 200) -> list[tuple[int, int]]:
    """Return spans of due time, first and last (epoch ms), that have all messages at `places`, which has at least one.

    `places` have the columns of `LOCATED_SCHEMA`. There are at most `most` spans, between the largest gaps.
    """
    from_ms, until_ms = (places.column(name).to_numpy() for name in ("from_ms", "until_ms"))
    order = np.argsort(from_ms, kind="stable")
    firsts, lasts = from_ms[order], np.maximum.accumulate(until_ms[order])
    gaps = firsts[1:] - lasts[:-1]
    ends = np.sort(np.argsort(-gaps, kind="stable")[: most - 1])
    ends = ends[gaps[ends] > 0]
    bounds = firsts[np.append(0, ends + 1)], lasts[np.append(ends, -1)]
    return list(zip(*(each.tolist() for each in bounds), strict=True))


def _in_pieces(segments: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut metadata rows so that the segments of each piece have `_IDS_AT_ONCE` ids, or are one."""
    own = segments.column("index_entries")
    row = pc.list_parent_indices(own).to_numpy()
    counts = np.bincount(row, pc.struct_field(own.flatten(), "count").to_numpy(), segments.num_rows)
    piece = (np.cumsum(counts) // _IDS_AT_ONCE).astype(np.int64)
    bounds = [0, *(1 + np.flatnonzero(np.diff(piece))).tolist(), segments.num_rows]
    for start, end in pairwise(bounds):
        yield segments.slice(start, end - start)


def _entries(segments: pa.RecordBatch) -> pa.Table:
    own = segments.column("index_entries").flatten()
    row = pc.list_parent_indices(segments.column("index_entries")).to_numpy()
    ticks_ms = pc.struct_field(own, "tick_ms").to_numpy()
    first_ms, last_ms, bits = (
        segments.column(name).to_numpy()[row] for name in ("deliver_at_ms", "max_deliver_at_ms", "precision_bits")
    )
    offsets = [stored_offsets(entry) for entry in own.to_pylist()]
    columns = {
        **{name: pc.struct_field(own, name) for name in ("topic", "partition")},
        **{name: segments.column(name).take(pa.array(row)) for name in ("part", "bucket")},
        # Cut to the bounds of the segment.
        "from_ms": np.maximum(first_ms, ticks_ms),
        "until_ms": np.minimum(last_ms, ticks_ms + (1 << bits.astype(np.int64)) - 1),
        "repeats": pc.greater(segments.column("repeats"), 0).take(pa.array(row)),
        "max_deliver_at_ms": last_ms,
        "first_offset": pa.array([each[0] for each in offsets], pa.int64()),
        "last_offset": pa.array([each[-1] for each in offsets], pa.int64()),
        "offsets": pa.array([_above_the_first(each) for each in offsets], pa.binary()),
    }
    return pa.table({name: columns[name] for name in ENTRY_SCHEMA.names}).cast(ENTRY_SCHEMA)


def _above_the_first(offsets: _Int64s) -> bytes:
    above = offsets - offsets[0]
    kind = np.uint32 if above[-1] <= _MOST_NARROW else np.int64
    return bytes(above.astype(kind).tobytes())


def offsets_of(entries: pa.Table) -> tuple[_Int64s, _Int64s]:
    """Return the offsets of all `entries` one after the other, and the number of offsets of each entry."""
    firsts, lasts = (entries.column(name).to_numpy() for name in ("first_offset", "last_offset"))
    stored, is_wide = entries.column("offsets").to_pylist(), lasts - firsts > _MOST_NARROW
    lengths = np.fromiter(map(len, stored), np.int64, len(stored)) // np.where(is_wide, 8, 4)
    if is_wide.any():
        kinds = (np.int64 if wide else np.uint32 for wide in is_wide.tolist())
        above = np.concatenate([np.frombuffer(*each).astype(np.int64) for each in zip(stored, kinds, strict=True)])
    else:
        above = np.frombuffer(b"".join(stored), np.uint32)
    return above + np.repeat(firsts, lengths), lengths


def _places_of(wanted: _Int64s, offsets: _Int64s) -> _Int64s:
    """Return which of `offsets` are `wanted`, which ascend."""
    # Nearly all are not, and a flag shows this for most of them. A binary search for each takes five times as long.
    flags = np.zeros(_FLAGS, dtype=bool)
    flags[wanted & (_FLAGS - 1)] = True
    perhaps = np.flatnonzero(flags[offsets & (_FLAGS - 1)])
    return perhaps[are_in(wanted, offsets[perhaps])]
