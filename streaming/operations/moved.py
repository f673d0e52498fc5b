"""Messages that a lost job has moved to another due time. The markers show whether it has staged them.

The batch has stored the id and the new due time before it staged the message (`state.buckets.cancelled`). If it was cut
off in between, the message is left and is due at that time, because an answer may have said so already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from state.buckets.cancelled import MOVED_SCHEMA, are_moved, moved_of
from state.buckets.reseal import left_rows
from state.buckets.retimed import RETIMED_SCHEMA
from state.buckets.table_rows import ArrowFunction
from state.checkpoint.staged import StagedMessages
from state.index.offset_bitmaps import OffsetBitmaps, add_ids, bitmaps_of, in_bitmaps
from state.kinds import DUE_NOW, is_message, with_kind
from state.message import decode_chunk, with_due_times
from state.message_ids import ID, contains_mask, ids_in, places_in


@dataclass(frozen=True)
class Moved:
    """The messages that batches have moved, as they are known when a checkpoint is lost.

    - `staged`: the messages that the lost job has staged
    - `ids`: the ids of all of them
    - `own_ids`: the ids that batches of the lost job itself have moved
    - `perhaps_left`: messages that its newest batches have moved, and may not have staged (`MOVED_SCHEMA`)
    """

    staged: StagedMessages
    ids: OffsetBitmaps = field(default_factory=dict)
    own_ids: OffsetBitmaps = field(default_factory=dict)
    perhaps_left: pa.Table = field(default_factory=MOVED_SCHEMA.empty_table)

    def are_gone(self, messages: pa.Table, bucket: int) -> np.ndarray:
        """Return which of `messages`, of a chunk of `bucket`, do not wait there any more, since they were moved."""
        # An earlier rebuild has also sealed messages that had been moved before.
        is_older = bucket < self.staged.origin.overdue_bucket
        return in_bitmaps(messages, self.ids if is_older else self.own_ids)

    def left_of(self, messages: pa.Table) -> pa.Table:
        """Return `messages`, accepted again, without moved messages that are staged; the others at their time."""
        named = contains_mask(messages, ids_in(self.perhaps_left))
        if not named.any():
            return messages
        named &= is_message(messages)
        own = self._left(messages.filter(pa.array(named)), self.perhaps_left)
        return pa.concat_tables([messages.filter(pa.array(~named)), own]).combine_chunks()

    def left_in_table(self, shards: int) -> ArrowFunction:
        """Return the `mapInArrow` function that gives what is left of stored chunks (`reseal.LEFT_SCHEMA`).

        The input has the columns bucket and chunk.
        """

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for bucket, chunk in zip(batch.column("bucket").to_pylist(), batch.column("chunk"), strict=True):
                    messages = decode_chunk(chunk.as_py())
                    # In a later bucket, the id belongs to another message: the input topic was created again.
                    moved = self.perhaps_left.filter(pc.field("bucket") >= bucket)
                    waits = contains_mask(messages, ids_in(moved)) & is_message(messages)
                    waits &= ~self.staged.of_bucket(messages, bucket)
                    if waits.any():
                        yield from left_rows(self._left(messages.filter(pa.array(waits)), moved), shards)

        return run

    def _left(self, messages: pa.Table, moved: pa.Table) -> pa.Table:
        """Return the messages that are left of `messages`, all of them `moved`, at their new due times."""
        own = moved.take(pa.array(places_in(moved, messages)))
        dues = np.minimum(*(each.column("deliver_at_ms").to_numpy() for each in (messages, own)))
        messages = with_kind(with_due_times(messages, dues), DUE_NOW)
        is_left = ~self.staged.of_moved(messages, own.column("bucket").to_numpy())
        # The new checkpoint begins at the cutoff, which may be of long ago. Its first batch stages these, so that
        # no request that is read later undoes what was answered.
        overdue = with_due_times(messages, np.minimum(dues, self.staged.overdue_ms))
        return overdue.filter(pa.array(is_left))


def moved_in(tables: Iterable[pa.Table], staged: StagedMessages) -> tuple[OffsetBitmaps, Moved]:
    """Return which ids are cancelled in stored rows (`state.buckets.id_rows.ID_ROW_SCHEMA`), and which moved.

    There may be very many. Only ids are kept, except of messages that may be left.
    """
    ids: dict[tuple[str, int], BitMap64] = {}
    own_ids: dict[tuple[str, int], BitMap64] = {}
    perhaps_left = [MOVED_SCHEMA.empty_table()]

    def cancelled() -> Iterator[pa.Table]:
        for table in tables:
            is_moved = are_moved(table)
            if is_moved.any():
                moved = moved_of(table.filter(pa.array(is_moved)))
                add_ids(ids, moved)
                add_ids(own_ids, moved.filter(pc.field("bucket") >= staged.origin.overdue_bucket))
                perhaps_left.append(moved.filter(pc.field("bucket") >= staged.newest.bucket))
            yield table.filter(pa.array(~is_moved))

    return bitmaps_of(cancelled()), Moved(staged, ids, own_ids, pa.concat_tables(perhaps_left))


def retimed_in(tables: Iterable[pa.Table], staged: StagedMessages) -> pa.Table:
    """Return which messages have taken over another due time (`RETIMED_SCHEMA`), from rows of `ID_ROW_SCHEMA`.

    Without messages that are staged by either due time, as far as the markers show that.
    """
    newest = staged.newest
    may_wait = (pc.field("max_deliver_at_ms") >= newest.previous_ms) | (pc.field("bucket") >= newest.bucket)
    columns = [*ID, "deliver_at_ms", "max_deliver_at_ms"]
    every = (table.filter(may_wait).select(columns).rename_columns(RETIMED_SCHEMA.names) for table in tables)
    return pa.concat_tables([RETIMED_SCHEMA.empty_table(), *every])


def with_ids(one: OffsetBitmaps, other: OffsetBitmaps) -> OffsetBitmaps:
    """Return the ids in either of them."""
    none = BitMap64()
    return {source: one.get(source, none) | other.get(source, none) for source in one.keys() | other.keys()}


def without_ids(ids: OffsetBitmaps, messages: pa.Table) -> OffsetBitmaps:
    """Return `ids` without the ids of `messages`, a table with the columns `ID`."""
    none, left_out = BitMap64(), bitmaps_of([messages.select(ID)])
    return {source: own - left_out.get(source, none) for source, own in ids.items()}
