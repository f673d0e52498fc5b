"""Moving messages of a batch to another due time, once it is decided, among what the state stage of the batch gives.

Such a message was not kept, so it is in a row of due or of sealed messages (`state.buckets.operator`). It is taken out
of there, gets its new due time, and is in another row: of due messages if it is due below the cutoff, and of sealed
ones if not. So what hands over, seals or counts the rows of a batch never meets the old due time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.operator import DUE, SEALED, SHARD_OUTPUT_SCHEMA, ShardRows
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import is_message
from state.message import decode_chunk
from state.message_ids import ID_SCHEMA, among, ids_in, places_in
from state.order import in_order
from state.shards import by_shard

# The messages to move, each once, and when they are due from then on (epoch ms); or when they were due before, if that
# is sooner and `or_sooner` is set.
MOVES_SCHEMA = ID_SCHEMA.append(pa.field("deliver_at_ms", pa.int64())).append(pa.field("or_sooner", pa.bool_()))
# So much of a shard is collected, until its moved messages become rows.
_TOGETHER_BYTES = 32 * 1024 * 1024


def due_at_once_ms(clock_ms: int) -> int:
    """Return when a message is due that a batch with this clock makes due at once, both epoch ms.

    The ask that comes with a message is due at the clock or before (`sources.intake.accepted`). It has the same id, and
    no two messages may have the same order key.
    """
    return clock_ms + 1


def moving(moves: pa.Table, batch_settings: BatchSettings, bucket: int, cutoff_ms: int) -> ArrowFunction:
    """Return the `mapInArrow` function that moves messages, among the rows of a batch (`SHARD_OUTPUT_SCHEMA`).

    Args:
        moves: the messages (`MOVES_SCHEMA`). Those that are not among the rows are ignored.
        batch_settings: has the limits of a segment.
        bucket: the bucket that the batch seals.
        cutoff_ms: its cutoff, epoch ms.

    All rows of a shard must go to one task: so the numbers of its new segments are unique.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = _Moved(batch_settings, bucket, cutoff_ms)
        for batch in batches:
            for row in batch.to_pylist():
                messages = decode_chunk(row["chunk"]) if row["kind"] in (DUE, SEALED) else None
                own = None if messages is None else taken(messages, moves)
                if messages is None or own is None:
                    yield _as_batch([row])
                    continue
                stays = messages.filter(pa.array(~_are_moved(messages, moves)))
                if stays.num_rows:
                    yield _as_batch(moved.rows_of(row["shard"]).without(row, stays))
                yield from moved.add(row["shard"], own)
        yield from moved.finish()

    return run


def moving_out(
    moves: pa.Table,
    places: pa.Table,
    from_ms: Mapping[int, int],
    least_ms: int,
    batch_settings: BatchSettings,
    bucket: int,
    cutoff_ms: int,
) -> ArrowFunction:
    """Return the `mapInArrow` function that copies messages of stored chunks to rows of due ones, with new due times.

    Args:
        moves: as of `moving`, each to a time below the cutoff.
        places: which of them are copied: the id of each, and the bucket of the chunk that has it.
        from_ms: in some buckets, the due time from which on messages count, epoch ms.
        least_ms: the same for all others.
        batch_settings: as of `moving`.
        bucket: as of `moving`.
        cutoff_ms: as of `moving`.

    The input has the columns bucket and chunk.
    """
    buckets = places.column("bucket")
    own_moves = {
        each: moves.filter(pa.array(among(moves, ids_in(places.filter(pc.equal(buckets, each))))))
        for each in buckets.unique().to_pylist()
    }

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moved = _Moved(batch_settings, bucket, cutoff_ms)
        for batch in batches:
            for number, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                messages = decode_chunk(chunk.as_py())
                counts = messages.column("deliver_at_ms").to_numpy() >= from_ms.get(number, least_ms)
                own = taken(messages.filter(pa.array(counts)), own_moves.get(number, moves.slice(0, 0)))
                if own is not None:
                    for shard, messages in by_shard(own, batch_settings.shards):
                        yield from moved.add(shard, messages)
        yield from moved.finish()

    return run


def taken(messages: pa.Table, moves: pa.Table) -> pa.Table | None:
    """Return those of `messages` that are moved, with their new due times; None if none is.

    A dead letter or an ask is none, whatever its id.
    """
    places = np.where(is_message(messages), places_in(moves, messages), -1)
    rows = np.flatnonzero(places >= 0)
    if not len(rows):
        return None
    own, new = messages.take(pa.array(rows)), moves.take(pa.array(places[rows]))
    before, after = (each.column("deliver_at_ms").to_numpy() for each in (own, new))
    dues = np.where(np.asarray(new.column("or_sooner")), np.minimum(before, after), after)
    at = messages.schema.get_field_index("deliver_at_ms")
    return own.set_column(at, messages.schema.field(at), pa.array(dues, pa.int64()))


def _are_moved(messages: pa.Table, moves: pa.Table) -> np.ndarray:
    return np.asarray(is_message(messages) & (places_in(moves, messages) >= 0))


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
        end = int(np.searchsorted(messages.column("deliver_at_ms").to_numpy(), self._cutoff_ms))
        rows = self.rows_of(shard)
        yield _as_batch([*rows.due(messages.slice(0, end)), *rows.sealed(messages.slice(end))])


def _as_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SHARD_OUTPUT_SCHEMA)
