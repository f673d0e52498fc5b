"""Arrow tables that travel from Spark's tasks to the driver as rows of one binary column.

The JVM copies such a row as a whole. With a row for each id it would convert each value twice, which takes ten times as
long as finding the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from state.buckets.table_rows import ArrowFunction
from state.message import decode_chunk, encode_chunk

_PACKED = from_arrow_schema(pa.schema([("rows", pa.binary())]))
# Rows are copied whole between the JVM and Python, so a row must not grow with the table.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 50_000, 8 * 1024 * 1024


def packed(rows: DataFrame, function: ArrowFunction = iter) -> DataFrame:
    """Return the output of `function` (a function for `mapInArrow`) over `rows`, packed for `unpacked`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in function(batches):
            by_bytes = 1 + _BYTES_AT_ONCE * batch.num_rows // max(1, batch.nbytes)
            at_once = min(_ROWS_AT_ONCE, by_bytes)
            for first in range(0, batch.num_rows, at_once):
                piece = pa.Table.from_batches([batch.slice(first, at_once)])
                yield pa.RecordBatch.from_pydict({"rows": [encode_chunk(piece)]})

    return rows.mapInArrow(run, _PACKED)


def unpacked(rows: Iterable[Any]) -> Iterator[pa.Table]:
    """Return the tables in `rows`, which were collected of a DataFrame that `packed` has returned."""
    return (decode_chunk(bytes(row["rows"])) for row in rows)
