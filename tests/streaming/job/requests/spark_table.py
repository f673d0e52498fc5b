"""The real table of sealed buckets, with the interface of the one in memory (`memory_table`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from sinks.buckets.join_commits import join_names
from state.buckets.operator import SHARD_OUTPUT_SCHEMA
from state.buckets.table_rows import STORED_SCHEMA
from streaming.job.requests import search


class SparkTable(BucketTable):
    """Takes and gives Arrow tables."""

    def frame(self, table: pa.Table) -> DataFrame:
        """Return a frame with the rows of `table`."""
        return self.spark.createDataFrame(table, from_arrow_schema(SHARD_OUTPUT_SCHEMA))

    def driver_rows(self, frame: DataFrame) -> list[Row]:
        """As `streaming.job.requests.search.driver_rows`."""
        return search.driver_rows(frame)

    def append(self, rows: Any, writer_id: str, batch_id: int, replaced: Collection[str] = ()) -> None:
        """Store rows once, in one task."""
        if isinstance(rows, pa.Table):
            rows = self.spark.createDataFrame(rows, from_arrow_schema(STORED_SCHEMA)).coalesce(1)
        super().append(rows, writer_id, batch_id, replaced)

    def join_names(self, numbers: Collection[int], due_before_ms: int) -> None:
        """As `sinks.buckets.join_commits.join_names`."""
        join_names(self, numbers, due_before_ms)
