"""Sets of message ids as Roaring bitmaps, for sets of any size: an id takes a few bytes at the most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from state.index.message_index import bitmap_of
from state.message_ids import by_source

# Offsets by (topic, partition).
OffsetBitmaps = Mapping[tuple[str, int], BitMap64]


def bitmaps_of(tables: Iterable[pa.Table]) -> OffsetBitmaps:
    """Return the ids of tables that have the columns `ID`."""
    bitmaps: dict[tuple[str, int], BitMap64] = {}
    for table in tables:
        offsets = table.column("offset").to_numpy()
        for source, rows in by_source(table):
            bitmaps.setdefault(source, BitMap64()).update(bitmap_of(offsets[rows]))
    return bitmaps


def in_bitmaps(messages: pa.Table, bitmaps: OffsetBitmaps) -> npt.NDArray[np.bool_]:
    """Return which rows of a table, which has the columns `ID`, have one of the ids in `bitmaps`."""
    found = np.zeros(messages.num_rows, dtype=bool)
    offsets = messages.column("offset").to_numpy()
    for source, rows in by_source(messages):
        if bitmap := bitmaps.get(source):
            found[rows] = [offset in bitmap for offset in offsets[rows].tolist()]
    return found
