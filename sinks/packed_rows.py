"""Arrow tables that travel from Spark's tasks to the driver as rows of one binary column.

The JVM copies such a row whole. Of a row for each id it would convert each value twice, which takes ten times as long
as to find the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from state.buckets.table_rows import ArrowFunction

_PACKED = from_arrow_schema(pa.schema([("rows", pa.binary())]))
# Rows are copied whole between the JVM and Python, so a row must not grow with the table.
_ROWS_AT_ONCE = 50_000


def packed(rows: DataFrame, function: ArrowFunction = iter) -> DataFrame:
    """Return what `function` (that of `mapInArrow`) makes of `rows`, packed for `unpacked`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in function(batches):
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch.slice(first, _ROWS_AT_ONCE))
                yield pa.RecordBatch.from_pydict({"rows": [sink.getvalue().to_pybytes()]})

    return rows.mapInArrow(run, _PACKED)


def unpacked(rows: Iterable[Any]) -> Iterator[pa.Table]:
    """Yield the tables in `rows`, which were collected of a DataFrame that `packed` has returned."""
    for row in rows:
        with pa.ipc.open_stream(bytes(row["rows"])) as reader:
            yield reader.read_all()
