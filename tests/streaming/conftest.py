"""What several tests of this folder share: a table of sealed buckets of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.bucket_table import BucketTable
from state.buckets.table_rows import STORED_SCHEMA


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> BucketTable:
    """An empty table."""
    made = BucketTable(spark, str(tmp_path / "buckets"))
    made.create(from_arrow_schema(STORED_SCHEMA))
    return made
