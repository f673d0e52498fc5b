"""Moving messages of a batch to another due time, once it is decided, among what the state stage of the batch gives.

Such a message was not kept, so it is in a row of due or of sealed messages (`state.buckets.operator`). It is taken out
of there, gets its new due time, and is in another row: of due messages if it is due below the cutoff or at once, and of
sealed ones if not. So what hands over, seals or counts the rows of a batch never meets the old due time.
"""

from __future__ import annotations

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
from state.message_ids import ID, ID_SCHEMA, Ids, among, by_source, ids_in, rows_among, table_of
from state.order import in_order
from state.shards import by_shard

# The messages to move, each once, and when they are due from then on (epoch ms). The batch hands over whatever is due
# `at_once`, and such a message keeps its own due time if that is sooner.
MOVES_SCHEMA = ID_SCHEMA.append(pa.field("deliver_at_ms", pa.int64())).append(pa.field("at_once", pa.bool_()))
# So much of a shard is collected, until its moved messages become rows.
_TOGETHER_BYTES = 32 * 1024 * 1024


def due_at_once_ms(clock_ms: int, cutoff_ms: int) -> int:
    """Return when a message is due that a batch with this clock and cutoff makes due at once, all epoch ms.

    That is below the cutoff, which may be behind the clock: what later batches hand over is due after it. Otherwise it
    is after the clock. The ask that comes with a message is due at the clock or before (`sources.intake.accepted`): it
    has the same id, and no two messages should have the same order key. No due time is negative.
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


def moving(moves: pa.Table, batch_settings: BatchSettings, bucket: int, cutoff_ms: int) -> ArrowFunction:
    """Return the `mapInArrow` function that moves messages, among the rows of a batch (`SHARD_OUTPUT_SCHEMA`).

    Args:
        moves: the messages (`MOVES_SCHEMA`). Those that are not among the rows are ignored.
        batch_settings: has the limits of a segment.
        bucket: the bucket that the batch seals.
        cutoff_ms: its cutoff, epoch ms.

    All rows of a shard must go to one task: so the numbers of its new segments are unique.
    """
    own_moves = _Moves(moves)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = _Moved(batch_settings, bucket, cutoff_ms)
        for batch in batches:
            for row in batch.to_pylist():
                if row["kind"] == FILLER:
                    # The state stage is over, and a batch of large messages has hundreds of thousands.
                    continue
                messages = decode_chunk(row["chunk"]) if row["kind"] in (DUE, SEALED) else None
                own = None if messages is None else own_moves.taken(messages)
                if messages is None or own is None:
                    yield _as_batch([row])
                    continue
                stays = messages.filter(pa.array(~own_moves.among(messages)))
                if stays.num_rows:
                    yield _as_batch(moved.rows_of(row["shard"]).without(row, stays))
                yield from moved.add(row["shard"], own)
        yield from moved.finish()

    return run


def moving_out(
    moves: pa.Table,
    places: pa.Table,
    first_ms: Callable[[int], int],
    batch_settings: BatchSettings,
    bucket: int,
    cutoff_ms: int,
) -> ArrowFunction:
    """Return the `mapInArrow` function that copies messages of stored chunks to rows of due ones, with new due times.

    Args:
        moves: as of `moving`, each `at_once`.
        places: which of them are copied: the id of each, and the bucket of the chunk that has it.
        first_ms: returns for a bucket the due time from which on messages count there, epoch ms.
        batch_settings: as of `moving`.
        bucket: as of `moving`.
        cutoff_ms: as of `moving`.

    The input has the columns bucket and chunk.
    """
    buckets = places.column("bucket")
    in_bucket = {each: ids_in(places.filter(pc.equal(buckets, each))) for each in buckets.unique().to_pylist()}
    own_moves = {each: _Moves(moves.filter(pa.array(among(moves, ids)))) for each, ids in in_bucket.items()}

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = _Moved(batch_settings, bucket, cutoff_ms)
        for batch in batches:
            for number, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                if number not in own_moves:
                    continue
                messages = decode_chunk(chunk.as_py())
                counts = messages.column("deliver_at_ms").to_numpy() >= first_ms(number)
                own = own_moves[number].taken(messages.filter(pa.array(counts)))
                if own is not None:
                    for shard, messages in by_shard(own, batch_settings.shards):
                        yield from moved.add(shard, messages)
        yield from moved.finish()

    return run


class _Moves:
    """Moves, to be looked up for one chunk after the other without sorting them again."""

    def __init__(self, moves: pa.Table) -> None:
        """Take a table of `MOVES_SCHEMA`."""
        offsets, dues, at_once = (moves.column(name).to_numpy() for name in ("offset", "deliver_at_ms", "at_once"))
        in_order = {source: rows[np.argsort(offsets[rows])] for source, rows in by_source(moves)}
        self._ids = {source: offsets[rows] for source, rows in in_order.items()}
        self._terms = {source: (dues[rows], at_once[rows]) for source, rows in in_order.items()}

    def among(self, messages: pa.Table) -> np.ndarray:
        """Return which of `messages` are moved. Never dead letters, requests or messages that repeat, by any id."""
        named = among(messages, self._ids)
        return named & is_message(messages) & ~repeats(messages) if named.any() else named

    def taken(self, messages: pa.Table) -> pa.Table | None:
        """Return those of `messages` that are moved, with their new due times and the column at_once; None if none."""
        are_moved = self.among(messages)
        if not are_moved.any():
            return None
        own = messages.filter(pa.array(are_moved))
        dues, at_once = own.column("deliver_at_ms").to_numpy().copy(), np.zeros(own.num_rows, dtype=bool)
        for source, rows, places in rows_among(own, self._ids):
            new_dues, are_at_once = (each[places] for each in self._terms[source])
            dues[rows] = np.where(are_at_once, np.minimum(dues[rows], new_dues), new_dues)
            at_once[rows] = are_at_once
        kinds = pa.array(np.where(at_once, DUE_NOW, kinds_of(own)), KIND.type)
        moved = with_due_times(own, dues).set_column(own.schema.get_field_index("kind"), KIND, kinds)
        return moved.append_column("at_once", pa.array(at_once))


class _Moved:
    """Collects moved messages by shard, and makes rows of them."""

    def __init__(self, batch_settings: BatchSettings, bucket: int, cutoff_ms: int) -> None:
        self._batch_settings, self._bucket, self._cutoff_ms = batch_settings, bucket, cutoff_ms
        self._tables: dict[int, list[pa.Table]] = {}
        self._rows: dict[int, ShardRows] = {}

    def rows_of(self, shard: int) -> ShardRows:
        known = self._rows.get(shard)
        if known is None:
            known = self._rows[shard] = ShardRows.of_moved(self._batch_settings, self._bucket, shard, self._cutoff_ms)
        return known

    def add(self, shard: int, messages: pa.Table) -> Iterator[pa.RecordBatch]:
        tables = self._tables.setdefault(shard, [])
        tables.append(messages)
        if sum(table.nbytes for table in tables) > _TOGETHER_BYTES:
            yield from self._flush(shard)

    def finish(self) -> Iterator[pa.RecordBatch]:
        for shard in list(self._tables):
            yield from self._flush(shard)

    def _flush(self, shard: int) -> Iterator[pa.RecordBatch]:
        messages = in_order(pa.concat_tables(self._tables.pop(shard)).combine_chunks())
        is_due = np.asarray(messages.column("at_once")) | (
            messages.column("deliver_at_ms").to_numpy() < self._cutoff_ms
        )
        due, sealed = (messages.filter(pa.array(rows)).drop_columns("at_once") for rows in (is_due, ~is_due))
        rows = self.rows_of(shard)
        yield _as_batch([*rows.due(due), *rows.sealed(sealed)])


def _as_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SHARD_OUTPUT_SCHEMA)
