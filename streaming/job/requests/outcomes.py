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

# Open: not known yet. Old: its record is deleted, or so old that nobody may know whether it was cancelled.
OPEN, CANCELLED, HANDED_OVER, OLD, UNREAD, NO_INPUT = range(6)


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
        self._cancelled: list[pa.Table] = []

    @property
    def cancelled(self) -> pa.Table:
        """What was given to `cancel` so far, as one table of `CANCELLED_SCHEMA`."""
        return pa.concat_tables([CANCELLED_SCHEMA.empty_table(), *self._cancelled])

    def open_ids(self, but: Ids = NO_IDS) -> Ids:
        """Return the ids whose outcome is open, without those of `but`."""
        return ids_in(self._asked.filter(pa.array((self._outcomes == OPEN) & ~among(self._asked, but))))

    def cancel(self, messages: pa.Table) -> None:
        """Let this batch cancel `messages` (`CANCELLED_SCHEMA`), asked for or not."""
        self._cancelled.append(messages)
        self.set_cancelled(ids_in(messages))

    def set_cancelled(self, ids: Ids) -> None:
        """Take note that `ids` are cancelled, by whatever batch or process."""
        self._outcomes[among(self._asked, ids)] = CANCELLED

    def close(self, known_from: Mapping[tuple[str, int], int]) -> None:
        """Let what is open be `OLD` if it is below the offset `known_from` of its input partition, or `HANDED_OVER`."""
        is_open = self._outcomes == OPEN
        self._outcomes[is_open] = np.where(is_below(self._asked, known_from), OLD, HANDED_OVER)[is_open]

    def of(self, asks: pa.Table) -> npt.NDArray[np.int8]:
        """Return the outcome of the message that each of `asks` asks for."""
        return self._outcomes[places_in(self._asked, asks)]
