"""Reading the input topics, and accepting what is read: records in, chunks of messages for each shard out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from conf.message import encode_chunk
from conf.rules import BatchRules
from conf.shards import shards_of
from sources.intake import accept

CHUNK_SCHEMA = "shard_key int, event_time timestamp, chunk binary"
_CHUNK = pa.schema([("shard_key", pa.int32()), ("event_time", pa.timestamp("us", tz="UTC")), ("chunk", pa.binary())])
_COLUMNS = (
    "key", "value", "headers", "topic", "partition", "offset",
    "unix_millis(timestamp) AS timestamp_ms",
    # The batch's own time, which the offset log records: a replayed batch reads the same.
    "unix_millis(current_timestamp()) AS clock_ms",
)  # fmt: skip


def read_records(
    spark: SparkSession, options: dict[str, str], topics: Sequence[str], messages_per_trigger: int
) -> DataFrame:
    """Return the stream of input records. `options` are the Java client's, without prefix."""
    reader = spark.readStream.format("kafka").options(
        **{f"kafka.{name}": value for name, value in {"isolation.level": "read_committed", **options}.items()}
    )
    return (
        reader.option("subscribe", ",".join(topics))
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", messages_per_trigger)
        .load()
        .selectExpr(*_COLUMNS)
    )


def accepting(
    rules_now: Callable[[], tuple[int, BatchRules]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that turns records into rows of `CHUNK_SCHEMA`.

    The event time of a chunk is null: only the clock may move the watermark, and Spark drops a stateful row whose
    event time is behind it.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _, rules = rules_now()
        for batch in batches:
            if batch.num_rows:
                records = pa.Table.from_batches([batch])
                messages = accept(records, rules, records.column("clock_ms")[0].as_py())
                yield _chunks(messages, rules)

    return run


def _chunks(messages: pa.Table, rules: BatchRules) -> pa.RecordBatch:
    shards = pa.array(shards_of(messages, rules.shards))
    keys, chunks = [], []
    for shard in shards.unique().to_pylist():
        keys.append(rules.shard_keys[shard])
        chunks.append(encode_chunk(messages.filter(pc.equal(shards, shard))))
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int32()), pa.nulls(len(keys), _CHUNK.field(1).type), pa.array(chunks, pa.binary())],
        schema=_CHUNK,
    )
