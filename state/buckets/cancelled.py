"""Cancelled ids as rows of the table of sealed buckets.

The rows of a message that was sealed, `due` in a range of time by the index, take it out of each window and merge that
is loaded from then on. And all rows, those of messages that were in no bucket as well, are what is known of earlier
cancels: the same id may be asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from state.buckets.parts import cancelled_partition
from state.buckets.table_rows import STORED_SCHEMA
from state.cancel import MessageId
from state.message_ids import ID

# The due time of a message that is in no bucket: no window has it.
NEVER_MS = -1


class CancelledId(NamedTuple):
    """A cancelled message. It is due in [from_ms, until_ms], epoch ms; both are `NEVER_MS` if it is in no bucket."""

    id: MessageId
    from_ms: int
    until_ms: int


def cancelled_rows(cancelled: Iterable[CancelledId], bucket: int) -> pa.Table:
    """Return the rows of `STORED_SCHEMA` for what the batch that seals `bucket` cancels."""
    by_id = sorted(cancelled)
    ids = zip(*(each.id for each in by_id), strict=True)
    columns = dict(zip(ID, ids, strict=True)) | {
        "part": [cancelled_partition(bucket)] * len(by_id),
        "bucket": [bucket] * len(by_id),
        "deliver_at_ms": [each.from_ms for each in by_id],
        "max_deliver_at_ms": [each.until_ms for each in by_id],
    }
    none = [None] * len(by_id)
    return pa.table([pa.array(columns.get(field.name, none), field.type) for field in STORED_SCHEMA], STORED_SCHEMA)
