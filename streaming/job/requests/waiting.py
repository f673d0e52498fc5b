"""The messages of a batch's requests that wait in the table, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.cancel import MessageId
from state.index.locate import LOCATED_SCHEMA
from state.message_ids import Ids, contains_mask
from state.repeats.waiting import NO_PREDECESSORS, Predecessor


class Waiting(NamedTuple):
    """Messages that wait in the table at `version`, with the place of each (`LOCATED_SCHEMA`).

    The columns `from_ms` and `until_ms` of a place are bounds of the due time. They are both the due time itself only
    if the index could not tell whether the message waits, and its chunk was read.

    Messages due before the field `from_ms` (epoch ms) no longer wait, except in the bucket `overdue_bucket`, if there
    is one. `repeating` has the waiting occurrences of those that repeat.
    """

    places: pa.Table
    version: int
    from_ms: int
    overdue_bucket: int | None
    repeating: Mapping[MessageId, Predecessor] = NO_PREDECESSORS

    @property
    def messages(self) -> pa.Table:
        """The messages, as a table of `CANCELLED_SCHEMA`."""
        return self.places.select(CANCELLED_SCHEMA.names).cast(CANCELLED_SCHEMA)

    def only(self, ids: Ids) -> Waiting:
        """Return the messages with these `ids`."""
        return self._replace(places=self.places.filter(pa.array(contains_mask(self.places, ids))))

    def first_ms(self, bucket: int) -> int:
        """Return the due time, epoch ms, from which on messages of `bucket` still wait."""
        return 0 if bucket == self.overdue_bucket else self.from_ms


NOTHING_WAITS = Waiting(LOCATED_SCHEMA.empty_table(), 0, 0, None)
