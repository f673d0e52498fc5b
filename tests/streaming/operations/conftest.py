"""Fixtures for operations on the table of sealed buckets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from streaming.operations.corruption import SKIP_CORRUPT_FILES


@pytest.fixture
def repair_options(spark: SparkSession) -> Iterator[None]:
    """The session options of a repair."""
    for name, value in SKIP_CORRUPT_FILES.items():
        spark.conf.set(name, value)
    yield
    for name in SKIP_CORRUPT_FILES:
        spark.conf.unset(name)
