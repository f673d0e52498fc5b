"""Messages that repeat, when a checkpoint is lost: which occurrence of each waits.

A batch stores the occurrences that follow once it has handed over the others (`state.repeats.occurrences`). So of each
message that repeats the table's last occurrence counts. If that is handed over, its batch was cut off before it stored
what follows, or it was the last of all: what is left is worked out again, by the clock of that batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.reseal import left_rows
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.handed_over import HandedOver, Mask
from state.index.offset_bitmaps import OffsetBitmaps, in_bitmaps
from state.kinds import repeats
from state.message import decode_chunk, encode_chunk
from state.message_ids import ID, ID_SCHEMA, places_in
from state.name_holders import HOLDER_SCHEMA
from state.repeats.occurrences import left_of_staged, waiting_in

# An occurrence in the table: its number, whether it is handed over, and its message, as a chunk.
_OCCURRENCES = pa.schema(
    [
        *ID_SCHEMA,
        ("number", pa.int64()),
        ("deliver_at_ms", pa.int64()),
        ("bucket", pa.int64()),
        ("is_handed_over", pa.bool_()),
        ("chunk", pa.binary()),
    ]
)
# The same, of what is left, with the name; or without a message, of what waits no more since a later one is there.
_LEFT = pa.schema(
    [*ID_SCHEMA, ("deliver_at_ms", pa.int64()), ("name", pa.binary()), ("keeps", pa.bool_()), ("chunk", pa.binary())]
)


@dataclass(frozen=True)
class Superseded:
    """Occurrences that are not handed over, and wait no more: they were left out as missed, and others followed."""

    messages: pa.Table = field(default_factory=lambda: ID_SCHEMA.append(_LEFT.field("deliver_at_ms")).empty_table())

    def __bool__(self) -> bool:
        return bool(self.messages.num_rows)

    @property
    def end_ms(self) -> int:
        """The instant from which on none of them was due, epoch ms."""
        return 1 + max(self.messages.column("deliver_at_ms").to_pylist(), default=-1)

    def among(self, messages: pa.Table) -> Mask:
        """Return which of `messages` they are."""
        places = places_in(self.messages, messages)
        dues = self.messages.column("deliver_at_ms").take(pa.array(places, mask=places < 0))
        same = np.asarray(dues.fill_null(-1)) == messages.column("deliver_at_ms").to_numpy()
        return np.asarray((places >= 0) & same & repeats(messages))


def left_in_table(store: BucketTable, handed_over: HandedOver, gone: OffsetBitmaps) -> DataFrame | None:
    """Return what the lost job left of messages that repeat and that it had sealed (`_LEFT`); None if there are none.

    `gone` are the messages that are cancelled, or recalled.
    """
    if not any(row["repeats"] for row in store.metadata()):
        return None
    every = store.repeating_chunks().mapInArrow(_occurrences(handed_over, gone), from_arrow_schema(_OCCURRENCES))
    by_id = every.repartition(*ID).sortWithinPartitions(*ID, "number", "deliver_at_ms", "bucket")
    return by_id.mapInArrow(_left(handed_over), from_arrow_schema(_LEFT))


def superseded_in(left: DataFrame) -> Superseded:
    """Return what `left_in_table` says of occurrences that wait no more."""
    return Superseded(left.where("chunk IS NULL").select(*ID, "deliver_at_ms").toArrow())


def as_left_rows(shards: int) -> ArrowFunction:
    """Return the `mapInArrow` function that gives the messages of `left_in_table` as rows of `LEFT_SCHEMA`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk").drop_null():
                yield from left_rows(decode_chunk(chunk.as_py()), shards)

    return run


def as_holders(left: DataFrame, bucket: int) -> DataFrame:
    """Return the names of what is left (`state.name_holders.HOLDER_SCHEMA`). It is sealed in `bucket`."""
    columns = ("name", *ID, "deliver_at_ms", "deliver_at_ms AS until_ms", "keeps", f"{bucket}L AS bucket")
    named = left.where("name IS NOT NULL").selectExpr(*columns, "true AS is_left")
    assert named.columns == HOLDER_SCHEMA.names
    return named


def left_of_input(messages: pa.Table, handed_over: HandedOver) -> pa.Table:
    """Return what waits of `messages` that were accepted again, repeat, and are handed over.

    Only of those that the newest batch has read: batches before have stored what follows.
    """
    own = messages.filter(pa.array(~handed_over.before_newest(messages)))
    newest = handed_over.newest
    return left_of_staged(own, newest.clock_ms, newest.cutoff_ms, handed_over.of_input)


def _occurrences(handed_over: HandedOver, gone: OffsetBitmaps) -> ArrowFunction:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                messages = messages.filter(pa.array(repeats(messages) & ~in_bitmaps(messages, gone)))
                if not messages.num_rows:
                    continue
                numbers = [each.occurrence.number for each in waiting_in(messages)]
                chunks = [encode_chunk(messages.slice(row, 1)) for row in range(messages.num_rows)]
                columns = [
                    *(messages.column(name) for name in ID),
                    pa.array(numbers, pa.int64()),
                    messages.column("deliver_at_ms"),
                    pa.array([bucket] * messages.num_rows, pa.int64()),
                    pa.array(handed_over.of_bucket(messages, bucket)),
                    pa.array(chunks, pa.binary()),
                ]
                yield from pa.table(columns, schema=_OCCURRENCES).to_batches()

    return run


def _left(handed_over: HandedOver) -> ArrowFunction:
    newest = handed_over.newest

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for _, own in groupby(rows, key=lambda row: tuple(row[name] for name in ID)):
            *before, last = own
            found = [{**row, "name": None, "keeps": None, "chunk": None} for row in before if not row["is_handed_over"]]
            if last["is_handed_over"] and newest.previous_ms <= last["deliver_at_ms"] < newest.cutoff_ms:

                def are_handed_over(messages: pa.Table, bucket: int = last["bucket"]) -> Mask:
                    return handed_over.of_bucket(messages, bucket)

                message = decode_chunk(last["chunk"])
                left = left_of_staged(message, newest.clock_ms, newest.cutoff_ms, are_handed_over)
                if left.num_rows:
                    schedule = waiting_in(left)[0].schedule
                    due_ms = left.column("deliver_at_ms")[0].as_py()
                    names = {"name": schedule.name or None, "keeps": schedule.keeps_name, "deliver_at_ms": due_ms}
                    found.append({**last, **names, "chunk": encode_chunk(left)})
            if found:
                rows_left = [{name: row[name] for name in _LEFT.names} for row in found]
                yield pa.RecordBatch.from_pylist(rows_left, schema=_LEFT)

    return run
