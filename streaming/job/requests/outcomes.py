"""The outcomes of the messages that the requests of a batch are for, as far as the batch knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.checkpoint.origin import Offsets, by_partition
from state.message_ids import NO_IDS, Ids, contains_mask, ids_in, is_below, places_in, table_of
from state.reasons import Reason


class Outcomes:
    """The outcome of each requested message: the `Reason` of an answer, or None if it is open.

    A message that the job has not read when the batch ends is `NOT_READ`, or `NO_INPUT_TOPIC` if no input topic has its
    name. All others are open at first.
    """

    def __init__(self, asked: Ids, ends: Offsets) -> None:
        """Take the requested ids, and the offsets up to which the job has read when the batch ends."""
        self._asked = table_of(asked)
        self._outcomes = np.full(self._asked.num_rows, None, dtype=object)
        # By the offset log, and not by the settings: these may have changed before a replay.
        self._outcomes[~is_below(self._asked, by_partition(ends))] = Reason.NOT_READ
        is_input = np.asarray(pc.is_in(self._asked.column("topic"), pa.array(list(ends), pa.string())))
        self._outcomes[~is_input] = Reason.NO_INPUT_TOPIC
        self._taken: list[pa.Table] = []

    @property
    def taken(self) -> pa.Table:
        """All messages that were passed to `take` so far, as one table of `CANCELLED_SCHEMA`."""
        return pa.concat_tables([CANCELLED_SCHEMA.empty_table(), *self._taken])

    def open_ids(self, but: Ids = NO_IDS) -> Ids:
        """Return the ids with an open outcome, without `but`."""
        return ids_in(self._asked.filter(pa.array(self._is_open & ~contains_mask(self._asked, but))))

    def take(self, messages: pa.Table) -> None:
        """Cancel `messages` (`CANCELLED_SCHEMA`), requested or not: this batch takes them from their places."""
        self._taken.append(messages)
        self.set(ids_in(messages), Reason.WITHDRAWN)

    def set(self, ids: Ids, outcome: Reason) -> None:
        """Set the outcome of `ids`, whichever batch, request or process has caused it."""
        self._outcomes[contains_mask(self._asked, ids)] = outcome

    def close(self, known_from: Mapping[tuple[str, int], int], repeating: Ids) -> None:
        """Set the outcomes that are open: a message waits, is too old to be known, or is staged.

        Only `repeating` messages are left waiting. Messages below the offset `known_from` of their input partition are
        old.
        """
        is_old = is_below(self._asked, known_from)
        rest = np.where(is_old, Reason.RECORD_DELETED, Reason.STAGED)  # type: ignore[call-overload]
        rest[contains_mask(self._asked, repeating)] = Reason.REPEATS
        is_open = self._is_open
        self._outcomes[is_open] = rest[is_open]

    def of(self, requests: pa.Table) -> npt.NDArray[Any]:
        """Return the outcome of the message that each of `requests` is for. A name may have no message."""
        places = places_in(self._asked, requests)
        found = np.full(requests.num_rows, Reason.NO_SUCH_NAME, dtype=object)
        found[places >= 0] = self._outcomes[places[places >= 0]]
        return found

    @property
    def _is_open(self) -> npt.NDArray[np.bool_]:
        return np.array([outcome is None for outcome in self._outcomes.tolist()], dtype=bool)
