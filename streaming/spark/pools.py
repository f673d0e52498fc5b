"""The scheduler pools in Spark other than the pool of the batches (`conf/java/scheduler-pools.xml`)."""

from __future__ import annotations

from pyspark.sql import SparkSession

# Loads of the prefetch window, and what no batch waits for.
LOADS, MAINTENANCE = "loads", "maintenance"


def use_pool(spark: SparkSession, pool: str) -> None:
    """Let the jobs that this thread starts from now on run in `pool`."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
