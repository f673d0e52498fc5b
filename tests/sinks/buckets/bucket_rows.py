"""The rows of buckets with made-up messages, and what a table has of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.segments import cut
from state.buckets.table_rows import STORED_SCHEMA, described_segment, stored_rows
from state.message import decode_chunk, encode_chunk
from tests.messages import messages, some_batch_settings

HOUR = 3_600_000


def bucket(
    spark: SparkSession, number: int, *dues: int, value: bytes | None = None, bits: int = 10, **batch_settings: Any
) -> DataFrame:
    """Return the rows of a bucket with one message due at each of `dues`."""
    sealed = messages([{"deliver_at_ms": due, "offset": due, "value": value or b"%d" % due} for due in sorted(dues)])
    return stored(spark, sealed, number, bits, **batch_settings)


def stored(spark: SparkSession, sealed: pa.Table, number: int, bits: int = 10, **batch_settings: Any) -> DataFrame:
    """Return the rows of a bucket with the messages `sealed`."""
    segments = [
        {**asdict(segment), "chunk": encode_chunk(rows)}
        for segment, rows in cut(sealed, number, 0, some_batch_settings(**batch_settings))
    ]
    batches = stored_rows(bits)(iter(pa.Table.from_pylist(segments).to_batches()))
    rows = pa.Table.from_batches(batches, STORED_SCHEMA)
    return spark.createDataFrame(rows, from_arrow_schema(STORED_SCHEMA)).coalesce(1)


def dues(read: DataFrame) -> list[int]:
    """Return the due times of the messages in chunks that were read, in order."""
    chunks = [decode_chunk(bytes(row["chunk"])) for row in read.collect()]
    return sorted(due for chunk in chunks for due in chunk.column("deliver_at_ms").to_pylist())


def parts(store: BucketTable, version: int | None = None) -> set[str]:
    """Return the parts that the table's metadata names, in its newest version or in another one."""
    return {described_segment(row.asDict()).part for row in store.metadata(version)}
