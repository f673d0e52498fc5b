"""Copies of messages in waiting chunks that requests want to be due at once.

These chunks are encoded, and the payloads of some must be read again. All of them together may not have room, so each
is searched as soon as it is there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sinks.internal_topics.position import Place
from sinks.release.encoded_chunks import Chunk
from state.kinds import DUE_NOW, is_message, with_kind
from state.message import with_due_times
from state.message_ids import NO_IDS, Ids, contains_mask
from state.order import OrderKey, count_before


class Copies:
    """Copies messages of waiting chunks for the requests of one chunk: the `wanted` ones."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self.wanted: Ids = NO_IDS
        # The copies of each chunk, from an order key on.
        self._copied: dict[Place, tuple[OrderKey, pa.Table]] = {}

    def begin(self, place: Place | None = None, wanted: Ids = NO_IDS) -> None:
        """Copy the messages `wanted` for the requests at `place` from now on; forget copies for other requests."""
        if place != self._place:
            self._place, self._copied = place, {}
        self.wanted = wanted

    def has(self, chunk: Chunk) -> bool:
        """Return whether the wanted messages that wait in `chunk` are copied."""
        return chunk.place in self._copied and self._copied[chunk.place][0] <= chunk.first

    def search(self, chunk: Chunk, messages: pa.Table) -> None:
        """Copy the wanted ones of the `messages` of `chunk`."""
        self._copied[chunk.place] = chunk.first, wanted_of(messages, self.wanted)

    def of(self, chunk: Chunk) -> pa.Table:
        """Return the copies of messages that still wait in `chunk`: others may have been opened since."""
        _, copied = self._copied[chunk.place]
        return copied.slice(count_before(copied, chunk.first))


def wanted_of(messages: pa.Table, wanted: Ids) -> pa.Table:
    """Return the rows of `messages` that are messages and have one of the `wanted` ids."""
    return messages.filter(pa.array(contains_mask(messages, wanted) & is_message(messages)))


def due_by(messages: pa.Table, now_ms: int) -> pa.Table:
    """Return `messages` as due at `now_ms` (epoch ms), unless they are due sooner."""
    return with_due_times(messages, np.minimum(messages.column("deliver_at_ms").to_numpy(), now_ms))


def due_now(messages: pa.Table, now_ms: int) -> pa.Table:
    """Return `messages` as made due at `now_ms` (epoch ms), unless they are due sooner."""
    return with_kind(due_by(messages, now_ms), DUE_NOW)
