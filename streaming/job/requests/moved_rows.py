"""The rows of a batch after its decision has moved messages, of its state stage or of the table, in time."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import InvariantViolated
from sinks.buckets.bucket_table import BucketTable
from state.buckets.moves import moving
from state.buckets.operator import DUE, SEALED, SHARD_OUTPUT_SCHEMA
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.progress import BatchSpan
from state.message_ids import count_of, ids_in
from streaming.job.requests.waiting import Waiting

_ROWS = from_arrow_schema(SHARD_OUTPUT_SCHEMA)


def with_moves(
    shard_output: DataFrame,
    store: BucketTable,
    stored: Waiting,
    moves: pa.Table,
    span: BatchSpan,
    batch_settings: BatchSettings,
) -> DataFrame:
    """Return the rows of the batch of `span` (`SHARD_OUTPUT_SCHEMA`) with `moves` (`state.buckets.moves.MOVES_SCHEMA`).

    Args:
        shard_output: the output of its state stage.
        store: the table.
        stored: the moved messages that wait in the table. If there are any, the rows of a shard are in several
            partitions; and the ids that the batch stores must take these messages out of windows and merges.
        moves: the moved messages, and their due times.
        span: the batch.
        batch_settings: its settings.
    """
    move = moving(moves, stored.places, stored.first_ms, batch_settings, span.bucket, span.cutoff_ms)
    moved = shard_output.mapInArrow(move, _ROWS)
    if not stored.places.num_rows:
        return moved
    chunks = store.chunks_at(stored.places, stored.version).select("bucket", "chunk")
    return moved.union(chunks.mapInArrow(move, _ROWS))


def check_moved(before: Iterable[Row], after: Iterable[Row], stored: Waiting) -> None:
    """Raise InvariantViolated if the rows of a batch lack messages that it had `before`, or that are `stored`.

    There may be more: if an input topic was created again, several messages have the same id.
    """
    expected = _messages(before) + count_of(ids_in(stored.places))
    if (found := _messages(after)) < expected:
        raise InvariantViolated(f"the batch has {found} messages once some are due at other times, and not {expected}")


def _messages(rows: Iterable[Row]) -> int:
    return sum(row["count"] for row in rows if row["kind"] in (DUE, SEALED))
