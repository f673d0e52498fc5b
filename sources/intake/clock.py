"""The clock stream, which alone moves the watermark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sources.intake.kafka_reader import CHUNK_SCHEMA


def tick(spark: SparkSession, next_cutoff_ms: Callable[[], int]) -> DataFrame:
    """Return a stream of one row for each batch; its event time is the cutoff of the next batch.

    It has the columns of `CHUNK_SCHEMA`, with a null chunk. `next_cutoff_ms` returns that cutoff (epoch ms) in a task.
    It may return another cutoff in a replay: Spark records what the last try of a batch has returned.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                row = {"shard_key": [-1], "event_time": [next_cutoff_ms() * 1000], "chunk": [None]}
                yield pa.RecordBatch.from_pydict(row, schema=CHUNK_SCHEMA)

    # `rate-micro-batch` makes a row at every trigger; `rate` only counts whole seconds.
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return ticks.select("value").mapInArrow(run, from_arrow_schema(CHUNK_SCHEMA))
