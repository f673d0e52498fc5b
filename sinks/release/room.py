"""The room in a transaction: the limits by which it is cut, and how much of them is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.release.rate_limiter import GoesTo, Rated, counts_for

# How many messages have their topics looked up together. The rates may allow only a few of very many messages.
_PIECE = 1_000


def _as_accepted(messages: pa.Table) -> pa.ChunkedArray:
    return messages.column("output_topic")


@dataclass(frozen=True)
class Limits:
    """How a transaction is cut. It has one message at least.

    - `messages`, `bytes`: how many it has at the most
    - `slice_ms`: the due time that it spans
    - `at_once`: the most messages for single output topics, and for all together (None). A message that is known to
      become a dead letter counts only for the dead-letter topic
    - `goes_to`: to which topic each message goes, as far as is known
    """

    messages: int
    bytes: int
    slice_ms: int
    at_once: Mapping[Rated, int] = field(default_factory=dict)
    goes_to: GoesTo = _as_accepted


class Room:
    """The rest of `limits` in one transaction."""

    def __init__(self, limits: Limits) -> None:
        self._messages, self._bytes = limits.messages, limits.bytes
        self._at_once = dict(limits.at_once)
        self._goes_to = limits.goes_to
        self._is_used = False

    @property
    def is_left(self) -> bool:
        """Whether anything may be added."""
        return self._messages > 0 and self._bytes > 0

    def first_of(self, messages: pa.Table, sizes: npt.NDArray[np.int64]) -> int:
        """Return how many of the first `messages`, with so many bytes each, fit."""
        count: int = min(messages.num_rows, self._messages)
        count = int(np.searchsorted(np.cumsum(sizes[:count]), self._bytes, side="right"))
        left = dict(self._at_once)
        for at in range(0, count, _PIECE) if left else ():
            piece = messages.slice(at, min(_PIECE, count - at))
            topics = self._goes_to(piece)
            fitting: int = piece.num_rows
            for name, most in left.items():
                rows = np.flatnonzero(counts_for(piece, topics, name))
                fitting = min(fitting, int(rows[most])) if len(rows) > most else fitting
                left[name] = most - len(rows)
            if fitting < piece.num_rows:
                return at + fitting
        return count

    def takes(self, messages: pa.Table, sizes: npt.NDArray[np.int64]) -> bool:
        """Add `messages`, which cannot be divided, and return True; or False if they do not fit.

        The first ones fit in any case.
        """
        if not messages.num_rows:
            return True
        if self._is_used and self.first_of(messages, sizes) < messages.num_rows:
            return False
        self._is_used = True
        self._messages -= messages.num_rows
        self._bytes -= int(sizes.sum())
        topics = self._goes_to(messages) if self._at_once else None
        for name, most in self._at_once.items():
            self._at_once[name] = max(0, most - int(counts_for(messages, topics, name).sum()))
        return True
