"""Group keys that place each shard on a separate state partition of Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession


def shard_keys(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """Return, for each shard, a group key that Spark hashes to the state partition with the shard's number.

    With the shard numbers as keys, two shards could share a partition, and one task would do the work of both.
    """
    rows = (
        spark.range(64 * shards)
        .selectExpr("CAST(id AS int) AS key", f"pmod(hash(CAST(id AS int)), {shards}) AS partition")
        .groupBy("partition")
        .min("key")
        .collect()
    )
    keys = {row["partition"]: row["min(key)"] for row in rows}
    return tuple(keys[shard] for shard in range(shards))
