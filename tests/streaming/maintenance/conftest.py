"""Fixtures of the tests of maintenance."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.streaming.maintenance.clocked_table import Table


@pytest.fixture
def table(spark: SparkSession, empty_table: Path, tmp_path: Path) -> Iterator[Table]:
    shutil.copytree(empty_table, tmp_path / "buckets")
    new_table = Table(spark, tmp_path / "buckets")
    yield new_table
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
