"""Group keys that Spark spreads over the state partitions evenly, one for each shard."""

from __future__ import annotations

from pyspark.sql import SparkSession


def shard_keys(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """Return, for each shard, a group key that Spark's hash puts on the state partition of the shard's number.

    Without this two shards can fall on one partition, and one task does all the work.
    """
    found = (
        spark.range(64 * shards)
        .selectExpr("CAST(id AS int) AS key", f"pmod(hash(CAST(id AS int)), {shards}) AS partition")
        .groupBy("partition")
        .min("key")
        .collect()
    )
    keys = {row["partition"]: row["min(key)"] for row in found}
    return tuple(keys[shard] for shard in range(shards))
