"""The clock: the one thing that moves the watermark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def tick(spark: SparkSession, lookahead_ms: int) -> DataFrame:
    """Return a stream of one row a batch whose event time is the batch's own time plus `lookahead_ms`.

    It has the columns of `sources.intake.kafka_reader.CHUNK_SCHEMA`, and no chunk. `rate-micro-batch` gives a row at
    every trigger; `rate` would tick in whole seconds.
    """
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return ticks.selectExpr(
        "-1 AS shard_key",
        f"timestamp_millis(unix_millis(current_timestamp()) + {int(lookahead_ms)}) AS event_time",
        "CAST(NULL AS binary) AS chunk",
    )
