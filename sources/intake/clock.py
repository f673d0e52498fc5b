"""The clock stream, which alone moves the watermark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def tick(spark: SparkSession, horizon_ms: int) -> DataFrame:
    """Return a stream of one row for each batch; its event time is the batch's clock plus `horizon_ms`.

    The columns are those of `sources.intake.kafka_reader.CHUNK_SCHEMA`, with a null chunk. `rate-micro-batch` makes a
    row at every trigger; `rate` only counts whole seconds.
    """
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return ticks.selectExpr(
        "-1 AS shard_key",
        f"timestamp_millis(unix_millis(current_timestamp()) + {int(horizon_ms)}) AS event_time",
        "CAST(NULL AS binary) AS chunk",
    )
