"""Cancelled ids as rows of the table of sealed buckets.

The row of a sealed message has the range of time in which it is due, according to the index. It removes the message
from each window and merge that is loaded from then on. All rows, including rows of messages that were in no bucket,
record earlier cancels, because a later request may have the same id.

A row removes messages from the bucket of its batch and from earlier buckets. In a later bucket the same id belongs to
another message, of an input topic that was deleted and created again. A merged bucket has the number of its last
bucket. The merge has left out messages that batches before that bucket cancelled.

The row of a message that a replacement cancelled also has the id of the replacement. If its batch is lost, the
replacement may be read again, and then it finds no waiting message. A message that its batch has moved and staged is
not cancelled. But it must no longer be found where it waited, and a rebuild must know that it may be staged. So its row
also has its new due time.
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
from state.message_ids import ID, ID_SCHEMA, Ids, id_text, is_below, places_in, rows_among, table_from

# The due time of a message that is in no bucket: no window has it.
NEVER_MS = -1
# Cancelled messages. Each is due in [from_ms, until_ms], epoch ms. If it is in no bucket, `from_ms` is `NEVER_MS`, and
# it is due at `until_ms` at the latest. Until then a request may have its name, and a rebuild would accept its record
# again if the row were gone.
CANCELLED_SCHEMA = ID_SCHEMA.append(pa.field("from_ms", pa.int64())).append(pa.field("until_ms", pa.int64()))
# Messages that a batch has moved and staged: the bucket of the batch, and the new due times (epoch ms).
MOVED_SCHEMA = ID_SCHEMA.append(pa.field("bucket", pa.int64())).append(pa.field("deliver_at_ms", pa.int64()))


@dataclass(frozen=True)
class CancelledIds:
    """Ids that were cancelled, and for each of `ids` the number of the last bucket in which it is the same message."""

    ids: Ids
    until_bucket: Mapping[tuple[str, int], npt.NDArray[np.int64]]

    def contains_mask(self, messages: pa.Table, bucket: int | npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which rows of a table, which has the columns `ID`, are cancelled.

        `bucket` is the number of the bucket of all rows, or has the number of each row's bucket.
        """
        found = np.zeros(messages.num_rows, dtype=bool)
        buckets = np.broadcast_to(bucket, messages.num_rows)
        # The rows of a chunk are looked up. Selecting the ids of a bucket would copy them all for each chunk.
        for source, rows, places in rows_among(messages, self.ids):
            found[rows] = self.until_bucket[source][places] >= buckets[rows]
        return found


NONE_CANCELLED = CancelledIds({}, {})


@dataclass(frozen=True)
class Forgettable:
    """Which cancelled ids can be forgotten: the ids to which all of this applies.

    - due before `due_before_ms`, epoch ms
    - cancelled by a batch before the one that seals `bucket`
    - below the offset that `old_below` has for their input partition
    """

    due_before_ms: int
    bucket: int
    old_below: Mapping[tuple[str, int], int]

    def contains_mask(self, ids: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of `ids` (`state.buckets.id_rows.ID_ROW_SCHEMA`) can be forgotten."""
        dues, buckets = (ids.column(name).to_numpy() for name in ("max_deliver_at_ms", "bucket"))
        return np.asarray((dues < self.due_before_ms) & (buckets < self.bucket) & is_below(ids, self.old_below))


NOTHING_FORGETTABLE = Forgettable(0, 0, {})


def cancelled_rows(
    cancelled: pa.Table, bucket: int, replaced: Mapping[MessageId, Successor] = NONE_REPLACED
) -> pa.Table:
    """Return the rows of `STORED_SCHEMA` for what the batch that seals `bucket` cancels or moves.

    `replaced` has the replacement of each message that one has cancelled. It has the new due time (epoch ms) of each
    message that is moved.
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
    """Return the value in `replaced` for each of `cancelled`, as text in binary; null for a message that it lacks."""
    texts = [str(each) if isinstance(each, int) else id_text(each) for each in replaced.values()]
    places = places_in(table_from(replaced, ID_SCHEMA), cancelled)
    return pa.array(texts, pa.binary()).take(pa.array(places, mask=places < 0))


def are_moved(ids: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which of `ids` (`state.buckets.id_rows.ID_ROW_SCHEMA`) belong to messages that were moved."""
    names = ids.column("name")
    if names.null_count == ids.num_rows:
        return np.zeros(ids.num_rows, dtype=bool)
    return np.asarray(pc.match_substring_regex(names.cast(pa.string()), r"^\d+$").fill_null(False))


def moved_of(ids: pa.Table) -> pa.Table:
    """Return `ids`, which all belong to messages that were moved, as a table of `MOVED_SCHEMA`."""
    dues = ids.column("name").cast(pa.string()).cast(pa.int64())
    return pa.table([*(ids.column(name) for name in (*ID, "bucket")), dues], schema=MOVED_SCHEMA)
