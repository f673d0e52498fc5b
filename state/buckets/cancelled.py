"""Cancelled ids as rows of the table of sealed buckets.

The rows of a message that was sealed, `due` in a range of time by the index, take it out of each window and merge that
is loaded from then on. And all rows, those of messages that were in no bucket as well, are what is known of earlier
cancels: the same id may be asked for again.

A row takes messages out of buckets up to that of its batch. In a later bucket the same id is another message's, of an
input topic that was deleted and created anew. A merged bucket has the number of its last one, and the merge has left
out what was cancelled by batches before that.

What a replacement has cancelled has the id of the replacement beside it: it may be read again when its batch is lost,
and finds nothing that waits. A message that its batch has moved, and handed over, is not cancelled. But it must not be
found any more where it waited, and a rebuild must know that it may be handed over: beside its id is when it was due
then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.id_rows import Columns, id_rows
from state.buckets.parts import IdRows
from state.cancel import NONE_REPLACED, MessageId, Successor
from state.message_ids import ID, ID_SCHEMA, Ids, id_text, is_below, places_in, rows_among

# The due time of a message that is in no bucket: no window has it.
NEVER_MS = -1
# Cancelled messages. Each is due in [from_ms, until_ms], epoch ms. If it is in no bucket, `from_ms` is `NEVER_MS`, and
# it is due at `until_ms` at the latest: up to then it may be asked for by a name, and a rebuild would accept its record
# again if the row were gone.
CANCELLED_SCHEMA = ID_SCHEMA.append(pa.field("from_ms", pa.int64())).append(pa.field("until_ms", pa.int64()))
# Messages that a batch has moved and handed over: the bucket of the batch, and when they were due then (epoch ms).
MOVED_SCHEMA = ID_SCHEMA.append(pa.field("bucket", pa.int64())).append(pa.field("deliver_at_ms", pa.int64()))


@dataclass(frozen=True)
class CancelledIds:
    """Ids that were cancelled, and for each of `ids` the number of the last bucket in which it is the same message."""

    ids: Ids
    until_bucket: Mapping[tuple[str, int], npt.NDArray[np.int64]]

    def among(self, messages: pa.Table, bucket: int | npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which rows of a table, which has the columns `ID`, are cancelled.

        `bucket` is the number of the bucket in which they lie, or has that of each row.
        """
        found = np.zeros(messages.num_rows, dtype=bool)
        buckets = np.broadcast_to(bucket, messages.num_rows)
        # What is looked up is the chunk. To select the ids of a bucket would copy them all for each.
        for source, rows, places in rows_among(messages, self.ids):
            found[rows] = self.until_bucket[source][places] >= buckets[rows]
        return found


NONE_CANCELLED = CancelledIds({}, {})


@dataclass(frozen=True)
class Forgettable:
    """Which cancelled ids are of no use any more: those that are all of these.

    - due before `due_before_ms`, epoch ms
    - cancelled by a batch before that which seals `bucket`
    - below the offset that `old_below` has for their input partition
    """

    due_before_ms: int
    bucket: int
    old_below: Mapping[tuple[str, int], int]

    def among(self, ids: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of some ids (`state.buckets.id_rows.ID_ROW_SCHEMA`) are."""
        dues, buckets = (ids.column(name).to_numpy() for name in ("max_deliver_at_ms", "bucket"))
        return np.asarray((dues < self.due_before_ms) & (buckets < self.bucket) & is_below(ids, self.old_below))


NOTHING_FORGETTABLE = Forgettable(0, 0, {})


def cancelled_rows(
    cancelled: pa.Table, bucket: int, replaced: Mapping[MessageId, Successor] = NONE_REPLACED
) -> pa.Table:
    """Return the rows of `STORED_SCHEMA` for what the batch that seals `bucket` cancels or moves.

    `replaced` has the replacement of each message that one has cancelled and the new due time of each that is moved
    (epoch ms).
    """
    return id_rows(IdRows.CANCELLED, bucket, cancelled_columns(cancelled, replaced))


def cancelled_columns(cancelled: pa.Table, replaced: Mapping[MessageId, Successor]) -> Columns:
    """Return the columns of these rows, for `id_rows`."""
    return {name: cancelled.column(name) for name in ID} | {
        "deliver_at_ms": cancelled.column("from_ms"),
        "max_deliver_at_ms": cancelled.column("until_ms"),
        "name": _successor_texts(cancelled, replaced),
    }


def _successor_texts(cancelled: pa.Table, replaced: Mapping[MessageId, Successor]) -> pa.Array:
    """Return what `replaced` has of each of `cancelled`, as text in binary; null for a message that it lacks."""
    if not replaced:
        return pa.nulls(cancelled.num_rows, pa.binary())
    ids, successors = zip(*replaced.items(), strict=True)
    texts = [str(each) if isinstance(each, int) else id_text(each) for each in successors]
    known = pa.table(list(zip(*ids, strict=True)), schema=ID_SCHEMA)
    places = places_in(known, cancelled)
    return pa.array(texts, pa.binary()).take(pa.array(places, mask=places < 0))


def are_moved(ids: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which of some ids (`state.buckets.id_rows.ID_ROW_SCHEMA`) are those of messages that were moved."""
    names = ids.column("name")
    if names.null_count == ids.num_rows:
        return np.zeros(ids.num_rows, dtype=bool)
    return np.asarray(pc.match_substring_regex(names.cast(pa.string()), r"^\d+$").fill_null(False))


def moved_of(ids: pa.Table) -> pa.Table:
    """Return such ids, all of messages that were moved, as a table of `MOVED_SCHEMA`."""
    dues = ids.column("name").cast(pa.string()).cast(pa.int64())
    return pa.table([*(ids.column(name) for name in (*ID, "bucket")), dues], schema=MOVED_SCHEMA)
