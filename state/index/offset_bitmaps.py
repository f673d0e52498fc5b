"""Sets of message ids as Roaring bitmaps, for sets of any size: an id takes at most a few bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from state.index.message_index import bitmap_of
from state.message_ids import Ids, by_source

# Offsets by (topic, partition).
OffsetBitmaps = Mapping[tuple[str, int], BitMap64]
# Such a set as a table: the offsets of each (topic, partition), serialized. `undecided` says whether the state stage
# leaves the messages to the decision of the batch (`state.cancel.is_undecided`), or cancels them for good.
BITMAPS_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offsets", pa.binary()), ("undecided", pa.bool_())]
)


def bitmaps_of(tables: Iterable[pa.Table]) -> OffsetBitmaps:
    """Return the ids of tables that have the columns `ID`."""
    bitmaps: dict[tuple[str, int], BitMap64] = {}
    for table in tables:
        add_ids(bitmaps, table)
    return bitmaps


def add_ids(bitmaps: dict[tuple[str, int], BitMap64], table: pa.Table) -> None:
    """Add the ids of a table that has the columns `ID` to `bitmaps`."""
    offsets = table.column("offset").to_numpy()
    for source, rows in by_source(table):
        bitmaps.setdefault(source, BitMap64()).update(bitmap_of(offsets[rows]))


def in_bitmaps(messages: pa.Table, bitmaps: OffsetBitmaps) -> npt.NDArray[np.bool_]:
    """Return which rows of a table, which has the columns `ID`, have one of the ids in `bitmaps`."""
    found = np.zeros(messages.num_rows, dtype=bool)
    offsets = messages.column("offset").to_numpy()
    for source, rows in by_source(messages):
        if bitmap := bitmaps.get(source):
            found[rows] = [offset in bitmap for offset in offsets[rows].tolist()]
    return found


def as_table(bitmaps: OffsetBitmaps, undecided: bool = False) -> pa.Table:
    """Return the ids as a table of `BITMAPS_SCHEMA`."""
    rows = [(*source, offsets.serialize(), undecided) for source, offsets in bitmaps.items()]
    columns = zip(*rows, strict=True) if rows else [[]] * len(BITMAPS_SCHEMA)
    return pa.table(dict(zip(BITMAPS_SCHEMA.names, map(list, columns), strict=True)), schema=BITMAPS_SCHEMA)


def ids_from(tables: Iterable[pa.Table]) -> Ids:
    """Return the ids of tables of `BITMAPS_SCHEMA`."""
    bitmaps: dict[tuple[str, int], BitMap64] = {}
    for table in tables:
        for topic, partition, offsets, _ in zip(*(column.to_pylist() for column in table.columns), strict=True):
            bitmaps.setdefault((topic, partition), BitMap64()).update(BitMap64.deserialize(offsets))
    return {source: np.frombuffer(each.to_array(), dtype=np.int64) for source, each in bitmaps.items()}
