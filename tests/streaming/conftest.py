"""Fixtures that several test folders share: a new table of sealed buckets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.table_rows import STORED_SCHEMA


@pytest.fixture(scope="session")
def empty_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an empty table, to be copied: to create one costs as much as a test that looks at it."""
    path = tmp_path_factory.mktemp("empty") / "buckets"
    BucketTable(spark, str(path)).create(from_arrow_schema(STORED_SCHEMA))
    return path


@pytest.fixture
def store(spark: SparkSession, empty_table: Path, tmp_path: Path) -> BucketTable:
    """An empty table of sealed buckets."""
    shutil.copytree(empty_table, tmp_path / "buckets")
    return BucketTable(spark, str(tmp_path / "buckets"))
