"""The query: how the parts are joined. One stateful stream from the input topics to `BatchRunner`."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from conf.errors import CheckpointMismatch
from conf.kafka.options import java_options
from conf.settings import Settings
from sources.intake.clock import tick
from sources.intake.kafka_reader import CHUNK_SCHEMA, accepting, read_records
from state.buckets.operator import SHARD_OUTPUT_SCHEMA, STATE_SCHEMA, update_shard
from state.checkpoint.batch_settings import BatchSettings, SettingsHistory
from state.checkpoint.origin import Offsets


def settings_of_task(history: SettingsHistory) -> Callable[[], tuple[int, BatchSettings]]:
    """Return a function that gives, inside a task, the running batch's id and its rules."""

    def settings_now() -> tuple[int, BatchSettings]:
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if batch is None:
            raise CheckpointMismatch("a task ran outside a batch, and cannot know its rules")
        return int(batch), history.at(int(batch))

    return settings_now


def shard_outputs(spark: SparkSession, settings: Settings, history: SettingsHistory, starts: Offsets) -> DataFrame:
    """Return the stream of what each batch delivers, seals and keeps (`state.buckets.operator.SHARD_OUTPUT_SCHEMA`).

    A new checkpoint reads the input from `starts`, and from the beginning where that names no offset.
    """
    settings_now = settings_of_task(history)
    records = read_records(
        spark,
        java_options(settings.kafka),
        settings.topics.input,
        settings.limits.messages_per_trigger,
        starts,
        settings.kafka.outage_limit,
        settings.topics.skip_expired,
    )
    messages = records.mapInArrow(accepting(settings_now), from_arrow_schema(CHUNK_SCHEMA))
    ticks = tick(spark, settings.clock.lookahead)
    return (
        messages.unionByName(ticks)
        .withWatermark("event_time", "0 seconds")
        # The clock has moved the watermark by here. A filter on any other column would be pushed below it.
        .where(col("event_time").isNull())
        .groupBy("shard_key")
        .applyInPandasWithState(
            update_shard(settings_now),
            from_arrow_schema(SHARD_OUTPUT_SCHEMA),
            from_arrow_schema(STATE_SCHEMA),
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


def start_query(
    shard_output: DataFrame, settings: Settings, checkpoint: str, run_batch: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Start the query; each batch goes to `run_batch`."""
    return (
        shard_output.writeStream.queryName(settings.application_id)
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{settings.clock.trigger} milliseconds")
        .foreachBatch(run_batch)
        .start()
    )
