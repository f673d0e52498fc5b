"""Fixtures for operations on the table of sealed buckets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.streaming.sealed import repairing


@pytest.fixture
def repair_options(spark: SparkSession) -> Iterator[None]:
    """The session options of a repair."""
    with repairing(spark):
        yield
