"""Moving messages of a batch to another due time, once it is decided, in the output of the batch's state stage.

Such a message was not kept, so it is in a row of due or sealed messages (`state.buckets.operator`). It is removed from
this row and gets its new due time. Then it goes to another row: of due messages if it is due below the cutoff or at
once, otherwise of sealed messages. So the code that stages, seals or counts the rows of a batch never sees the old due
time. A message of an earlier batch is copied from its stored chunk in the same way, and the chunk keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.operator import DUE, FILLER, SEALED, SHARD_OUTPUT_SCHEMA, ShardRows
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import DUE_NOW, KIND, is_message, kinds_of, repeats
from state.message import decode_chunk, with_due_times
from state.message_ids import ID, ID_SCHEMA, Ids, contains_mask, ids_in, placing, table_of
from state.order import in_order
from state.shards import by_shard

# The messages to move, each once, and when they are due from then on (epoch ms). The batch stages each message that is
# due `at_once`. Such a message keeps its own due time if that is sooner.
MOVES_SCHEMA = ID_SCHEMA.append(pa.field("deliver_at_ms", pa.int64())).append(pa.field("at_once", pa.bool_()))
# The kind of a row of a stored chunk, which does not say it.
_STORED = "stored"
# The moved messages of a shard become rows once so many bytes are collected.
_PIECE_BYTES = 32 * 1024 * 1024


def due_at_once_ms(clock_ms: int, cutoff_ms: int) -> int:
    """Return the due time of messages that a batch with this clock and cutoff makes due at once, all epoch ms.

    It is below the cutoff, which may be behind the clock: messages that later batches stage are due after it. Otherwise
    it is after the clock. A request that comes with a message is due at the clock or before
    (`sources.intake.accepted`). It has the same id, and no two messages should have the same order key. No due time is
    negative.
    """
    return max(0, min(clock_ms + 1, cutoff_ms - 1))


def moves_at_once(ids: Ids, due_ms: int) -> pa.Table:
    """Return the moves of the messages `ids` to `due_ms` (epoch ms), at once."""
    messages = table_of(ids)
    when = [pa.repeat(pa.scalar(value), messages.num_rows) for value in (due_ms, True)]
    return pa.table([*messages.columns, *when], schema=MOVES_SCHEMA)


def moves_to(retimed: pa.Table) -> pa.Table:
    """Return the moves of messages to their due times in a table that has the columns `ID` and deliver_at_ms."""
    at_once = pa.repeat(pa.scalar(False), retimed.num_rows)
    return retimed.select([*ID, "deliver_at_ms"]).append_column(MOVES_SCHEMA.field("at_once"), at_once)


def moving(
    moves: pa.Table,
    places: pa.Table,
    first_ms: Callable[[int], int],
    batch_settings: BatchSettings,
    bucket: int,
    cutoff_ms: int,
    piece_bytes: int = _PIECE_BYTES,
) -> ArrowFunction:
    """Return the `mapInArrow` function that moves messages, among the rows of a batch and in stored chunks.

    Args:
        moves: the messages (`MOVES_SCHEMA`). Missing messages are ignored. Messages in stored chunks are all `at_once`.
        places: which of them are in stored chunks: the id of each, and the bucket of the chunk. In another bucket,
            another message may have the same id.
        first_ms: returns for a bucket the due time from which on messages count there, epoch ms.
        batch_settings: has the limits of a segment.
        bucket: the bucket that the batch seals.
        cutoff_ms: its cutoff, epoch ms.
        piece_bytes: about how many bytes of a shard's moved messages become rows at once.

    The input is rows of `SHARD_OUTPUT_SCHEMA`. All rows of a shard must go to one task, so that the numbers of its new
    segments are unique. Or the input is stored chunks, with the columns bucket and chunk. Then only the moved messages
    are output.
    """
    find, buckets = placing(moves), places.column("bucket")
    in_bucket = {each: ids_in(places.filter(pc.equal(buckets, each))) for each in buckets.unique().to_pylist()}
    # By bucket: the moves of messages that it has.
    is_there = {each: contains_mask(moves, ids) for each, ids in in_bucket.items()}
    nowhere = np.zeros(moves.num_rows, dtype=bool)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = _Moved(batch_settings, bucket, cutoff_ms, piece_bytes)
        for row in (row for batch in batches for row in batch.to_pylist()):
            kind = row.get("kind", _STORED)
            if kind == FILLER:
                # The state stage is over, and a batch of large messages has hundreds of thousands.
                continue
            if kind not in (DUE, SEALED, _STORED):
                yield _as_batch([row])
                continue
            messages = decode_chunk(row["chunk"])
            at = find(messages)
            is_moved = (at >= 0) & is_message(messages) & ~repeats(messages)
            if kind == _STORED:
                counts = messages.column("deliver_at_ms").to_numpy() >= first_ms(row["bucket"])
                is_moved &= counts & is_there.get(row["bucket"], nowhere)[at]
            elif not is_moved.any():
                yield _as_batch([row])
            elif not is_moved.all():
                stay = messages.filter(pa.array(~is_moved))
                yield _as_batch(moved.rows_of(row["shard"]).without(row, stay))
            if is_moved.any():
                own = _as_moved(messages.filter(pa.array(is_moved)), moves.take(pa.array(at[is_moved])))
                for shard, of_shard in by_shard(own, batch_settings.shards):
                    yield from moved.add(shard, of_shard)
        yield from moved.finish()

    return run


def _as_moved(messages: pa.Table, moves: pa.Table) -> pa.Table:
    """Return `messages` with due time, kind and the column at_once by `moves`, which has one for each of them."""
    dues, new_dues = (table.column("deliver_at_ms").to_numpy() for table in (messages, moves))
    at_once = moves.column("at_once").to_numpy()
    kinds = pa.array(np.where(at_once, DUE_NOW, kinds_of(messages)), KIND.type)
    moved = with_due_times(messages, np.where(at_once, np.minimum(dues, new_dues), new_dues))
    moved = moved.set_column(messages.schema.get_field_index("kind"), KIND, kinds)
    return moved.append_column("at_once", pa.array(at_once))


class _Moved:
    """Collects moved messages by shard, and makes rows of them."""

    def __init__(self, batch_settings: BatchSettings, bucket: int, cutoff_ms: int, piece_bytes: int) -> None:
        self._batch_settings, self._bucket, self._cutoff_ms = batch_settings, bucket, cutoff_ms
        self._piece_bytes = piece_bytes
        # By shard. Computing the bytes of a table takes longer than adding it.
        self._tables: dict[int, list[pa.Table]] = {}
        self._bytes: Counter[int] = Counter()
        self._rows: dict[int, ShardRows] = {}

    def rows_of(self, shard: int) -> ShardRows:
        known = self._rows.get(shard)
        if known is None:
            known = self._rows[shard] = ShardRows.of_moved(self._batch_settings, self._bucket, shard, self._cutoff_ms)
        return known

    def add(self, shard: int, messages: pa.Table) -> Iterator[pa.RecordBatch]:
        self._tables.setdefault(shard, []).append(messages)
        self._bytes[shard] += messages.nbytes
        if self._bytes[shard] > self._piece_bytes:
            yield from self._flush(shard)

    def finish(self) -> Iterator[pa.RecordBatch]:
        for shard in list(self._tables):
            yield from self._flush(shard)

    def _flush(self, shard: int) -> Iterator[pa.RecordBatch]:
        messages = in_order(pa.concat_tables(self._tables.pop(shard)).combine_chunks())
        del self._bytes[shard]
        is_due = np.asarray(messages.column("at_once")) | (
            messages.column("deliver_at_ms").to_numpy() < self._cutoff_ms
        )
        due, sealed = (messages.filter(pa.array(rows)).drop_columns("at_once") for rows in (is_due, ~is_due))
        rows = self.rows_of(shard)
        yield _as_batch([*rows.due(due), *rows.sealed(sealed)])


def _as_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SHARD_OUTPUT_SCHEMA)
