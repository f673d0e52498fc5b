"""What became of the messages that a batch's asks ask for, as far as the batch knows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.checkpoint.origin import Offsets, by_partition
from state.message_ids import NO_IDS, Ids, among, ids_in, is_below, places_in, table_of

# Open: not known yet. Old: its record is deleted, or so old that nobody may know whether it was cancelled. Delivered: a
# request has made it due at once, now or before.
OPEN, CANCELLED, DELIVERED, HANDED_OVER, OLD, UNREAD, NO_INPUT = range(7)


class Outcomes:
    """The outcome of each message that is asked for, each once.

    One that the job has not read when the batch ends is `UNREAD`, or `NO_INPUT` if no input topic has its name. All
    others are `OPEN` at first.
    """

    def __init__(self, asked: Ids, ends: Offsets) -> None:
        """Take the ids that are asked for, and up to which offsets the job has read when the batch ends."""
        self._asked = table_of(asked)
        # By the offset log, and not by the settings, which a replay may find changed.
        outcomes = np.where(is_below(self._asked, by_partition(ends)), OPEN, UNREAD).astype(np.int8)
        is_input = np.asarray(pc.is_in(self._asked.column("topic"), pa.array(list(ends), pa.string())))
        self._outcomes = np.where(is_input, outcomes, np.int8(NO_INPUT))
        self._taken: list[pa.Table] = []

    @property
    def taken(self) -> pa.Table:
        """What was given to `take` so far, as one table of `CANCELLED_SCHEMA`."""
        return pa.concat_tables([CANCELLED_SCHEMA.empty_table(), *self._taken])

    def open_ids(self, but: Ids = NO_IDS) -> Ids:
        """Return the ids whose outcome is open, without those of `but`."""
        return ids_in(self._asked.filter(pa.array((self._outcomes == OPEN) & ~among(self._asked, but))))

    def take(self, messages: pa.Table) -> None:
        """Let this batch take `messages` (`CANCELLED_SCHEMA`) from where they wait, asked for or not: cancel them."""
        self._taken.append(messages)
        self.set_cancelled(ids_in(messages))

    def set_cancelled(self, ids: Ids) -> None:
        """Take note that `ids` are cancelled, by whatever batch or process."""
        self._outcomes[among(self._asked, ids)] = CANCELLED

    def set_delivered(self, ids: Ids) -> None:
        """Take note that requests have made `ids` due at once, this batch's or earlier ones."""
        self._outcomes[among(self._asked, ids)] = DELIVERED

    def close(self, known_from: Mapping[tuple[str, int], int]) -> None:
        """Let what is open be `OLD` if it is below the offset `known_from` of its input partition, or `HANDED_OVER`."""
        is_open = self._outcomes == OPEN
        self._outcomes[is_open] = np.where(is_below(self._asked, known_from), OLD, HANDED_OVER)[is_open]

    def of(self, asks: pa.Table) -> npt.NDArray[np.int8]:
        """Return the outcome of the message that each of `asks` asks for."""
        return self._outcomes[places_in(self._asked, asks)]
