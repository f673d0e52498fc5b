"""Where messages are that a batch's asks ask for: in its state stage, in the table, or neither.

The state stage has taken out what it found itself. What an overflow group passes by, and what is sealed, is looked for
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import CANCELLED_SCHEMA, NEVER_MS, NONE_CANCELLED, CancelledIds
from state.buckets.operator import ASKED, KEPT, TAKEN_OUT
from state.buckets.parts import part_of
from state.checkpoint.progress import BatchSpan
from state.kinds import is_message
from state.message import decode_chunk
from state.message_ids import ID, Ids, among, ids_in
from streaming.job.requests.sealed_ids import SealedIds


def driver_rows(shard_output: DataFrame) -> list[Row]:
    """Return the rows that the state stage of a batch gives, without chunks of messages, which no driver reads."""
    kinds = f"'{ASKED}', '{TAKEN_OUT}', '{KEPT}'"
    return shard_output.withColumn("chunk", expr(f"IF(kind IN ({kinds}), chunk, NULL)")).collect()


def read_asks(rows: Iterable[Row]) -> tuple[pa.Table, pa.Table]:
    """Return the asks of a batch, and the messages that the state stage has taken out (`CANCELLED_SCHEMA`)."""
    tables = [(row["kind"], decode_chunk(bytes(row["chunk"]))) for row in rows if row["kind"] in (ASKED, TAKEN_OUT)]
    asks = pa.concat_tables([table for kind, table in tables if kind == ASKED])
    found = [table for kind, table in tables if kind == TAKEN_OUT]
    if not found:
        return asks, CANCELLED_SCHEMA.empty_table()
    # Two have one id if an input topic was created again.
    taken_out = pa.concat_tables(found).group_by(list(ID)).aggregate([("deliver_at_ms", "max")])
    never = pa.repeat(pa.scalar(NEVER_MS), taken_out.num_rows)
    columns = [*(taken_out.column(name) for name in ID), never, taken_out.column("deliver_at_ms_max")]
    return asks, pa.table(columns, schema=CANCELLED_SCHEMA)


def waiting(
    ids: Ids,
    store: BucketTable,
    sealed_ids: SealedIds,
    span: BatchSpan,
    cancelled: CancelledIds = NONE_CANCELLED,
) -> pa.Table:
    """Return which of `ids` wait in a bucket of an earlier batch than that of `span` (`CANCELLED_SCHEMA`).

    They are not handed over before this batch, and not `cancelled`. `sealed_ids` are those of `store`.
    """
    if not ids:
        return CANCELLED_SCHEMA.empty_table()
    # The index and chunks, of one version: a merge moves messages to other parts.
    version = store.version()
    previous_ms = span.handed_over_below_ms
    # The first batch hands over what an earlier checkpoint has left, however long it is due.
    first_ms = previous_ms if span.batch_id else 0
    located = sealed_ids.locate(ids, span.bucket, first_ms, version)
    if cancelled.ids:
        located = located.filter(pa.array(~cancelled.among(located, located.column("bucket").to_numpy())))
    from_ms, until_ms = (located.column(name).to_numpy() for name in ("from_ms", "until_ms"))
    waits = from_ms >= previous_ms
    if not span.batch_id:
        waits |= located.column("bucket").to_numpy() == span.origin.overdue_bucket
    doubtful = ~waits & (until_ms >= previous_ms)
    known = located.filter(pa.array(waits)).select(CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA)
    still = _still_waiting(located.filter(pa.array(doubtful)), store, previous_ms, version)
    return pa.concat_tables([known, still])


def _still_waiting(doubtful: pa.Table, store: BucketTable, previous_ms: int, version: int) -> pa.Table:
    """Return those that are due at `previous_ms` or later, which the index does not know exactly."""
    if not doubtful.num_rows:
        return CANCELLED_SCHEMA.empty_table()
    parts = {part_of(metadata) for metadata in doubtful.column("part").unique().to_pylist()}
    end_ms = 1 + pc.max(doubtful.column("until_ms")).as_py()
    buckets = set(doubtful.column("bucket").unique().to_pylist())
    chunks = store.chunks(previous_ms, end_ms, parts, buckets, version)
    return _dues(chunks, ids_in(doubtful)).filter(pc.field("from_ms") >= previous_ms)


def passed_by(ids: Ids, kind: str, shard_output: DataFrame, rows: Iterable[Row]) -> pa.Table:
    """Return those of `ids` that this batch seals, or hands over, from overflow groups.

    These have no state, and take nothing out. `kind` is `SEALED` or `DUE`.
    """
    # Each group says what it keeps, and overflow groups come beside the group of their shard.
    groups = Counter(row["shard"] for row in rows if row["kind"] == KEPT)
    if not ids or max(groups.values(), default=0) < 2 or all(row["kind"] != kind for row in rows):
        return CANCELLED_SCHEMA.empty_table()
    return _dues(shard_output.where(f"kind = '{kind}'"), ids)


def _dues(chunks: DataFrame, ids: Ids) -> pa.Table:
    """Return those of `ids` that are in `chunks`, with their due times, as a table of `CANCELLED_SCHEMA`.

    Neither dead letters nor asks.
    """
    found = chunks.select("chunk").mapInArrow(_finding(ids), from_arrow_schema(CANCELLED_SCHEMA))
    return found.toArrow()


def _finding(ids: Ids) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk"):
                messages = decode_chunk(chunk.as_py())
                named = among(messages, ids) & is_message(messages)
                found = messages.filter(pa.array(named))
                due = found.column("deliver_at_ms")
                columns = [*(found.column(name) for name in ID), due, due]
                yield from pa.table(columns, names=CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA).to_batches()

    return run
