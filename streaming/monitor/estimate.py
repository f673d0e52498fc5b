"""Counts of waiting messages that are not staged yet, from due times, counts and bytes in the job's memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from state.buckets.segments import ANY_SHARD, Segment
from state.due_spans import LATER, SPANS_MS, DueRun


@dataclass(frozen=True)
class MutableDues:
    """When the messages of a shard's mutable bucket are due, and their bytes."""

    runs: Sequence[DueRun]
    bytes: int

    @property
    def mean_bytes(self) -> float:
        """The bytes of a message, on average."""
        return self.bytes / max(1, sum(run.messages for run in self.runs))


@dataclass(frozen=True)
class WaitingInShard:
    """The waiting messages of one shard. Those in merged buckets belong to no shard."""

    shard: int
    mutable: int
    sealed: int
    next_due_ms: int | None


class WaitingEstimate:
    """Counts the messages of mutable buckets and of segments that are due at or after the cutoff.

    The messages of a run or a segment are assumed to be evenly spread between its first and its last due time. So
    counts up to an instant between them are estimates. Runs are short (`state.due_spans`).
    """

    def __init__(self, mutable: Mapping[int, MutableDues], segments: Iterable[Segment], cutoff_ms: int) -> None:
        """Take the mutable buckets by shard, and all segments. Messages due below `cutoff_ms` are staged."""
        rows: list[tuple[float, ...]] = []
        for shard, own in mutable.items():
            mean_bytes = own.mean_bytes
            rows += [(shard, 1, *run, 0, run.messages * mean_bytes) for run in own.runs]
        rows += [
            (each.shard, 0, each.min_deliver_at_ms, each.max_deliver_at_ms, each.count, each.repeats, each.bytes)
            for each in segments
        ]
        nbytes = np.array([row[6] for row in rows], dtype=np.float64)
        table = np.array([row[:6] for row in rows], dtype=np.int64).reshape(-1, 6)
        waits = table[:, 3] >= cutoff_ms
        table, nbytes = table[waits], nbytes[waits]
        self._shards, self._is_mutable = table[:, 0], table[:, 1].astype(bool)
        firsts, self._lasts = table[:, 2], table[:, 3]
        left = 1 - _share_below(cutoff_ms, firsts, self._lasts)
        # The last message of each waits, at least.
        self._counts = np.maximum(1, np.rint(table[:, 4] * left).astype(np.int64))
        self._repeats = table[:, 5] * left
        self._bytes = nbytes * left
        self._firsts = np.maximum(firsts, cutoff_ms)

    @property
    def mutable(self) -> int:
        """The number of messages in mutable buckets."""
        return int(self._counts[self._is_mutable].sum())

    @property
    def sealed(self) -> int:
        """The number of messages in sealed buckets."""
        return int(self._counts[~self._is_mutable].sum())

    @property
    def repeating(self) -> int:
        """The number of messages that repeat: one occurrence of each waits, in a sealed bucket."""
        return math.ceil(float(self._repeats.sum()))

    @property
    def merged(self) -> int:
        """The number of the sealed messages that are in merged buckets."""
        return int(self._counts[self._shards == ANY_SHARD].sum())

    @property
    def mutable_bytes(self) -> int:
        """The bytes of the messages in mutable buckets."""
        return round(float(self._bytes[self._is_mutable].sum()))

    @property
    def sealed_bytes(self) -> int:
        """The bytes of the messages in sealed buckets, uncompressed."""
        return round(float(self._bytes[~self._is_mutable].sum()))

    @property
    def next_due_ms(self) -> int | None:
        """When the first message is due, or None if none waits."""
        return _least(self._firsts)

    @property
    def last_due_ms(self) -> int | None:
        """When the last message is due, or None if none waits."""
        return int(self._lasts.max()) if len(self._lasts) else None

    def due_before(self, at_ms: int) -> int:
        """Return how many messages are due before `at_ms`, about."""
        return int(np.rint((self._counts * _share_below(at_ms, self._firsts, self._lasts)).sum()))

    def due(self, now_ms: int) -> dict[str, int]:
        """Return how many messages are due in each of `SPANS_MS`, and `LATER`."""
        below = [self.due_before(now_ms + span_ms) for span_ms in SPANS_MS.values()]
        counts = np.diff(below, prepend=0, append=self._counts.sum()).tolist()
        return dict(zip([*SPANS_MS, LATER], counts, strict=True))

    def by_shard(self, shards: int) -> list[WaitingInShard]:
        """Return the waiting messages of `shards` shards, and of former shards with sealed buckets that still wait."""
        return [self._in_shard(number) for number in range(max(shards, int(self._shards.max(initial=-1)) + 1))]

    def _in_shard(self, number: int) -> WaitingInShard:
        own = self._shards == number
        return WaitingInShard(
            number,
            mutable=int(self._counts[own & self._is_mutable].sum()),
            sealed=int(self._counts[own & ~self._is_mutable].sum()),
            next_due_ms=_least(self._firsts[own]),
        )


def _share_below(at_ms: int, firsts: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    share: np.ndarray = np.clip((at_ms - firsts) / (lasts + 1 - firsts), 0.0, 1.0)
    return share


def _least(instants: np.ndarray) -> int | None:
    return int(instants.min()) if len(instants) else None
