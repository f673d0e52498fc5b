"""The query: one stateful stream from the input topics to the function that runs each batch.

In the order of the data:

1. Records and ticks are read (`sources.intake`), and records are accepted: they become chunks of messages by shard.
2. The tick moves the watermark, which is the cutoff of the next batch, and is then dropped.
3. The state function of each shard divides its messages into due, sealed and kept (`state.buckets.operator`).
4. `BatchRunner.run` stages the due messages and seals the others (`streaming.job.batch`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from conf.kafka.options import java_options
from conf.settings import Settings
from sources.intake.clock import tick
from sources.intake.kafka_reader import CHUNK_SCHEMA, accepting, read_records
from state.buckets.operator import FILLER, SHARD_OUTPUT_SCHEMA, STATE_SCHEMA, update_shard
from state.checkpoint.batch_settings import SettingsHistory
from state.checkpoint.origin import Offsets
from streaming.job.inputs.batch_size import first_size
from streaming.job.plan import batch_of_task, next_cutoff_of_task

# Spark's class. The other source, the clock, has no limit.
_KAFKA_SOURCE = "KafkaMicroBatchStream"


def shard_outputs(spark: SparkSession, settings: Settings, history: SettingsHistory, starts: Offsets) -> DataFrame:
    """Return the stream of the rows that each batch stages, seals and keeps (`operator.SHARD_OUTPUT_SCHEMA`).

    A new checkpoint reads the input from the offsets `starts`, and from the beginning if `starts` is empty.
    """
    running_batch = batch_of_task(history)
    records = read_records(
        spark,
        java_options(settings.kafka),
        settings.topics.input,
        first_size(settings.limits),
        starts,
        settings.kafka.outage_limit,
        settings.topics.skip_expired,
    )
    messages = records.mapInArrow(accepting(running_batch), from_arrow_schema(CHUNK_SCHEMA))
    return (
        messages.unionByName(tick(spark, next_cutoff_of_task))
        .withWatermark("event_time", "0 seconds")
        # Drop the tick, which has moved the watermark by now. Spark would push a filter on another column below it.
        .where(col("event_time").isNull())
        .groupBy("shard_key")
        .applyInPandasWithState(
            update_shard(running_batch),
            from_arrow_schema(SHARD_OUTPUT_SCHEMA),
            from_arrow_schema(STATE_SCHEMA),
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
        .where(f"kind <> '{FILLER}'")
    )


def start_query(
    shard_output: DataFrame,
    settings: Settings,
    checkpoint: str,
    run_batch: Callable[[DataFrame, int], None],
    only_planned: bool = False,
) -> StreamingQuery:
    """Start the query, which passes each batch to `run_batch`.

    With `only_planned` it ends with the batch that was cut off, which must exist, and plans no other.
    """
    # Otherwise each batch waits at its end until the next one should begin (`streaming.job.inputs.arrivals`).
    trigger: dict[str, Any] = {"once": True} if only_planned else {"processingTime": "0 seconds"}
    return (
        shard_output.writeStream.queryName(settings.application_id)
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .foreachBatch(run_batch)
        .start()
    )


def limit_next_batch(spark: SparkSession, name: str, records: int) -> None:
    """Let the next batch of the query `name` read at most so many records. Call it while a batch runs.

    No option of Spark can be changed in a running query. But when Spark plans a batch, it looks up the limit of each
    source in a map (`StreamExecution.uniqueSources`), in which the option of the source stands at the start.
    """
    jvm: Any = spark.sparkContext._jvm
    limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(records)
    for query in spark.streams.active:
        if query.name != name:
            continue
        execution = query._jsq.streamingQuery()
        limits = execution.uniqueSources()
        sources = limits.keysIterator()
        while sources.hasNext():
            source = sources.next()
            if source.getClass().getSimpleName() == _KAFKA_SOURCE:
                limits = limits.updated(source, limit)
        getattr(execution, "uniqueSources_$eq")(limits)
