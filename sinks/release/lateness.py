"""How late a release process was during the last minute, from its own clock: from a due time to the end of its
transaction."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pyarrow as pa

from sinks.internal_topics.position import Lateness

_SPAN_MS = 60_000
# About the most messages of one transaction that are sampled, evenly, so that a burst costs no more.
_MOST_SAMPLES = 50
# The quantiles are computed again at most this often.
_EVERY_MS = 1_000


class LatenessWindow:
    """The lateness of the messages that one shard released in the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, int, np.ndarray]] = deque()
        self._computed_ms = 0
        self._newest = Lateness()

    def add(self, dues_ms: pa.ChunkedArray, released_ms: int) -> None:
        """Add the messages of a transaction that ended at `released_ms` (epoch ms)."""
        every = max(1, len(dues_ms) // _MOST_SAMPLES)
        late = released_ms - dues_ms.to_numpy()[::every]
        with self._lock:
            self._samples.append((released_ms, len(dues_ms), late))

    def quantiles(self, now_ms: int) -> Lateness:
        """Return the lateness of the last minute as of `now_ms` (epoch ms), at most a second old."""
        if 0 <= now_ms - self._computed_ms < _EVERY_MS:
            return self._newest
        with self._lock:
            # Samples that are far ahead go as well: the clock was ahead, and would keep all samples behind them.
            while self._samples and abs(now_ms - self._samples[0][0]) > _SPAN_MS:
                self._samples.popleft()
            samples = list(self._samples)
        self._computed_ms = now_ms
        self._newest = Lateness()
        if samples:
            late = np.maximum(np.concatenate([each for _, _, each in samples]), 0)
            p50, p99 = np.percentile(late, [50, 99])
            count = sum(number for _, number, _ in samples)
            self._newest = Lateness(count, round(float(p50)), round(float(p99)), int(late.max()))
        return self._newest
