"""A fixture that several test folders share: a new table of sealed buckets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.bucket_table import BucketTable
from state.buckets.table_rows import STORED_SCHEMA


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> BucketTable:
    """An empty table of sealed buckets."""
    bucket_table = BucketTable(spark, str(tmp_path / "buckets"))
    bucket_table.create(from_arrow_schema(STORED_SCHEMA))
    return bucket_table
