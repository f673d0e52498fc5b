"""When waiting messages are due, by spans of time from now: exact counts in little space."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

# Spans of time to the due time, by their ends in ms from now. The first, `overdue`, ends now.
SPANS_MS = {
    "overdue": 0,
    "10s": 10_000,
    "1m": 60_000,
    "10m": 600_000,
    "1h": 3_600_000,
    "6h": 21_600_000,
    "1d": 86_400_000,
    "7d": 7 * 86_400_000,
    "30d": 30 * 86_400_000,
    "90d": 90 * 86_400_000,
    "366d": 366 * 86_400_000,
}
LATER = "later"

# Spans are divided, so that counts stay nearly exact while time passes, and a border moves over the messages.
_PARTS = 16
_ENDS_MS = [*SPANS_MS.values()]
_EDGES_MS = np.array(
    [start + (end - start) * part // _PARTS for start, end in pairwise(_ENDS_MS) for part in range(_PARTS)]
    + _ENDS_MS[-1:],
    dtype=np.int64,
)


class DueRun(NamedTuple):
    """A number of messages. The first is due at `first_ms`, and the last at `last_ms` (epoch ms)."""

    first_ms: int
    last_ms: int
    messages: int


def due_runs(dues_ms: np.ndarray, now_ms: int) -> list[DueRun]:
    """Divide messages due at `dues_ms` (epoch ms, ascending) into runs, each within one span from `now_ms` (epoch ms).

    There are at most 162, in order.
    """
    cuts = np.unique([0, *np.searchsorted(dues_ms, now_ms + _EDGES_MS), len(dues_ms)])
    starts, ends = cuts[:-1], cuts[1:]
    runs = np.column_stack([dues_ms[starts], dues_ms[ends - 1], ends - starts])
    return [DueRun(*run) for run in runs.tolist()]


def encode_runs(runs: list[DueRun]) -> bytes:
    """Return `runs` as bytes."""
    return np.array(runs, dtype=np.int64).tobytes()


def decode_runs(encoded: bytes) -> list[DueRun]:
    """Return the runs that `encode_runs` has encoded."""
    return [DueRun(*run) for run in np.frombuffer(encoded, dtype=np.int64).reshape(-1, 3).tolist()]
