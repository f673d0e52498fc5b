"""Reads messages in chunks: where the index cannot tell whether a message waits, and messages that repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from state.cancel import MessageId
from state.index.locate import LOCATED_SCHEMA
from state.kinds import MESSAGE, REPEATING, kinds_of, repeats
from state.message import decode_chunk
from state.message_ids import ID, ID_SCHEMA, Ids, contains_mask, table_from
from state.repeats.schedule import Schedule
from state.repeats.waiting import Predecessor, waiting_in

# A message in a chunk: its id, the bucket of the chunk, and its due time (epoch ms). A message that repeats also has
# the number and the instant (epoch ms) of the occurrence, and the schedule. Others have nulls there.
_OCCURRENCE = pa.schema([("number", pa.int64()), ("at_ms", pa.int64()), ("schedule", pa.binary())])
FOUND_SCHEMA = pa.schema([*ID_SCHEMA, ("bucket", pa.int64()), ("deliver_at_ms", pa.int64()), *_OCCURRENCE])


def found_in(chunks: DataFrame, ids: Ids) -> pa.Table:
    """Return the messages among `ids` that are in `chunks` (`FOUND_SCHEMA`), without dead letters and requests.

    Also leaves out messages that a lost batch has made due and a rebuild has left. They will come out, and the answer
    may already say so.
    """
    return chunks.select("bucket", "chunk").mapInArrow(_finding(ids), from_arrow_schema(FOUND_SCHEMA)).toArrow()


def repeating_in(found: pa.Table) -> dict[MessageId, Predecessor]:
    """Return the waiting occurrence of each message that repeats among `found` (`FOUND_SCHEMA`)."""
    repeating = found.filter(pc.is_valid(found.column("number")))
    columns = (repeating.column(name).to_pylist() for name in (*ID, *_OCCURRENCE.names))
    # The last occurrence waits.
    rows = sorted(zip(*columns, strict=True))
    return {row[:3]: Predecessor(row[3], row[4], Schedule.from_bytes(row[5]).rule) for row in rows}


def still_there(doubtful: pa.Table, there: pa.Table) -> pa.Table:
    """Return the `doubtful` places with a waiting message that is `there` (`FOUND_SCHEMA`).

    The index does not know whether the message is there, or when exactly it is due.
    """
    joined = doubtful.join(there, [*ID, "bucket"], join_type="inner", use_threads=False)
    due = joined.column("deliver_at_ms")
    is_it = pc.and_(pc.less_equal(joined.column("from_ms"), due), pc.less_equal(due, joined.column("until_ms")))
    exact = joined.append_column("exact_ms", due).filter(is_it)
    columns = ["exact_ms" if name in ("from_ms", "until_ms") else name for name in LOCATED_SCHEMA.names]
    places = pa.table([exact.column(name) for name in columns], schema=LOCATED_SCHEMA)
    # A message and its request may have two places.
    return places.group_by(LOCATED_SCHEMA.names, use_threads=False).aggregate([])


def _finding(ids: Ids) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                found = messages.filter(
                    pa.array(contains_mask(messages, ids) & np.isin(kinds_of(messages), (MESSAGE, REPEATING)))
                )
                columns = [*(found.column(name) for name in ID), pa.array([bucket] * found.num_rows, pa.int64())]
                columns += [found.column("deliver_at_ms"), *_occurrences_in(found).columns]
                yield from pa.table(columns, names=FOUND_SCHEMA.names).cast(FOUND_SCHEMA).to_batches()

    return run


def _occurrences_in(messages: pa.Table) -> pa.Table:
    """Return a row of `_OCCURRENCE` for each of `messages`."""
    repeating = repeats(messages)
    waiting = waiting_in(messages.filter(pa.array(repeating)))
    own = ((each.occurrence.number, each.occurrence.at_ms, each.schedule.to_bytes()) for each in waiting)
    rows: list[tuple[object, ...]] = [next(own) if each else (None,) * 3 for each in repeating.tolist()]
    return table_from(rows, _OCCURRENCE)
