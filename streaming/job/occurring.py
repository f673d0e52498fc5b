"""The rows of a batch for messages that repeat: the occurrences that it stages, and those that follow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import groupby
from operator import itemgetter
from tempfile import SpooledTemporaryFile

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.ready_log.task import Cancels, staged_of
from state.buckets.operator import DUE, NAMED, SHARD_OUTPUT_SCHEMA
from state.buckets.table_rows import ArrowFunction
from state.cancel import MessageId
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.progress import BatchSpan
from state.group_keys import state_partitions
from state.kinds import repeats
from state.message import decode_chunk, encode_chunk
from state.names import NAMED_SCHEMA
from state.repeats.occurrences import OccurrenceRows
from state.repeats.waiting import Predecessor

_ROWS = from_arrow_schema(SHARD_OUTPUT_SCHEMA)
# The range of due times of a chunk that is taken whole, as columns.
WHOLE = ("CAST(NULL AS bigint) AS from_ms", "CAST(NULL AS bigint) AS until_ms")


def occurrence_rows(
    shard_output: DataFrame,
    rows: Iterable[Row],
    loaded: list[DataFrame],
    cancels: Cancels,
    predecessors: Mapping[MessageId, Predecessor],
    span: BatchSpan,
    batch_settings: BatchSettings,
) -> DataFrame | None:
    """Return the rows (`SHARD_OUTPUT_SCHEMA`) that the batch of `span` makes of messages that repeat, or None.

    Args:
        shard_output: the output of its state stage, after messages are moved.
        rows: the same, without chunks of messages.
        loaded: the chunks of the window that have such messages (`PrefetchWindow.take_repeating`).
        cancels: the messages that the batch leaves out.
        predecessors: the predecessors of messages that came with the batch, by the ids of these messages.
        span: the batch.
        batch_settings: its settings.
    """
    several = [piece.selectExpr("shard", f"{span.previous_ms}L AS from_ms", "until_ms", "chunk") for piece in loaded]
    if any(row["kind"] == DUE and row["repeats"] for row in rows):
        several.append(shard_output.where(f"kind = '{DUE}' AND repeats > 0").selectExpr("shard", *WHOLE, "chunk"))
    if not several:
        return None
    # One task has all rows of a shard, and numbers their segments.
    every = by_shard(reduce(DataFrame.union, several), batch_settings)
    occurring = _occurring(cancels, predecessors, batch_settings, span)
    return every.sortWithinPartitions("shard").mapInArrow(occurring, _ROWS)


def by_shard(rows: DataFrame, batch_settings: BatchSettings) -> DataFrame:
    """Return `rows` with all rows of a shard in one partition, as in the state stage."""
    keys = ", ".join(map(str, batch_settings.shard_keys))
    return rows.repartition(state_partitions(batch_settings.shards), expr(f"array({keys})[shard]"))


def names_in(rows: Iterable[Row]) -> pa.Table:
    """Return the names in rows of a batch (`state.names.NAMED_SCHEMA`)."""
    tables = [decode_chunk(bytes(row["chunk"])) for row in rows if row["kind"] == NAMED]
    return pa.concat_tables([NAMED_SCHEMA.empty_table(), *tables])


def _occurring(
    cancels: Cancels,
    predecessors: Mapping[MessageId, Predecessor],
    batch_settings: BatchSettings,
    span: BatchSpan,
) -> ArrowFunction:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for shard, chunks in groupby(_chunks(batches, cancels), key=itemgetter(0)):
            made = OccurrenceRows(batch_settings, span, shard, predecessors)
            # Many large messages may be due at one instant.
            with SpooledTemporaryFile(batch_settings.group_bytes, dir=_local_dir()) as spool:
                lengths = []
                for _, messages in chunks:
                    made.add(messages)
                    lengths.append(spool.write(encode_chunk(messages)))
                spool.seek(0)
                for length in lengths:
                    yield from made.staged(decode_chunk(spool.read(length)))
            yield from made.finish()

    return run


def _local_dir() -> str | None:
    """Return where Spark has told its workers to write files; None if it has not."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _chunks(batches: Iterable[pa.RecordBatch], cancels: Cancels) -> Iterator[tuple[int, pa.Table]]:
    """Yield the shard of each chunk, and its due messages that repeat."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("shard", "from_ms", "until_ms", "chunk"))
        for shard, from_ms, until_ms, chunk in zip(*columns, strict=True):
            messages = staged_of(decode_chunk(chunk), from_ms, until_ms, cancels)
            yield shard, messages.filter(pa.array(repeats(messages))).combine_chunks()
