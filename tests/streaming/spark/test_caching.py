"""Caching a DataFrame, as each batch does."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def test_a_cached_frame_is_planned_by_the_session_itself(spark: SparkSession) -> None:
    # And not by a clone of it, which Spark 4.0.0 keeps until the process ends.
    frame = spark.range(10).persist()
    try:
        java: Any = spark._jsparkSession
        cached = java.sharedState().cacheManager().lookupCachedData(java, frame._jdf.logicalPlan())
        planned_by = cached.get().cachedRepresentation().cacheBuilder().cachedPlan().session()
        assert planned_by.sessionUUID() == java.sessionUUID()
    finally:
        frame.unpersist()
