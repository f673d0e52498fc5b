"""A table of sealed buckets in a temporary folder, made without a job, for measurements of the table alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.load import VALUE_BYTES
from conf.load import load_settings
from sinks.buckets.bucket_table import BucketTable
from state.buckets.segments import Segment, cut
from state.buckets.table_rows import STORED_SCHEMA, segment_rows
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.kinds import MESSAGE
from state.message import MESSAGE_SCHEMA
from streaming.spark.session import open_session


class SealedTable:
    """A table in `folder`, with the default settings of a job with one shard."""

    def __init__(self, store: BucketTable, batch_settings: BatchSettings) -> None:
        self.store = store
        self.folder = Path(store.path)
        self.batch_settings = batch_settings

    def rows(self, number: int, deliver_at_ms: npt.NDArray[np.int64]) -> tuple[DataFrame, list[Segment]]:
        """Return the rows and the segments of bucket `number`, with a message due at each instant."""
        cut_messages = list(cut(_messages(number, np.sort(deliver_at_ms)), number, 0, self.batch_settings))
        bits = self.batch_settings.index_precision_bits
        rows = [batch for segment, messages in cut_messages for batch in segment_rows(segment, messages, bits)]
        frame = self.store.spark.createDataFrame(pa.Table.from_batches(rows), from_arrow_schema(STORED_SCHEMA))
        return frame.coalesce(1), [segment for segment, _ in cut_messages]

    def seal(self, number: int, deliver_at_ms: npt.NDArray[np.int64]) -> list[Segment]:
        """Seal bucket `number`, and return its segments."""
        rows, segments = self.rows(number, deliver_at_ms)
        self.store.append(rows, "benchmark", number)
        return segments


@contextmanager
def sealed_table() -> Iterator[SealedTable]:
    """Yield an empty table in a Spark session of its own, with the job's options."""
    settings = load_settings(None, [], environ={})
    batch_settings = batch_settings_from(settings, {}, range(1), CheckpointOrigin("benchmark", 1, 1))
    with tempfile.TemporaryDirectory(prefix="delayline-bench-") as folder:
        spark = open_session(settings)
        try:
            store = BucketTable(spark, str(Path(folder) / "buckets"))
            store.create(from_arrow_schema(STORED_SCHEMA))
            yield SealedTable(store, batch_settings)
        finally:
            spark.stop()


def _messages(bucket: int, deliver_at_ms: npt.NDArray[np.int64]) -> pa.Table:
    count = len(deliver_at_ms)
    noise = np.random.default_rng(bucket).bytes(count * VALUE_BYTES)
    offsets = np.random.default_rng(bucket).permutation(count) + bucket * count
    columns = {
        "deliver_at_ms": deliver_at_ms,
        "kind": np.full(count, MESSAGE),
        "topic": ["in"] * count,
        "partition": np.zeros(count),
        "offset": offsets,
        "timestamp_ms": deliver_at_ms,
        "output_topic": ["out"] * count,
        "output_partition": np.zeros(count),
        "value": [noise[at * VALUE_BYTES : (at + 1) * VALUE_BYTES] for at in range(count)],
    }
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in MESSAGE_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=MESSAGE_SCHEMA)
