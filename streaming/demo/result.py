"""The result of the demo: the judge's verdict, and the lateness of the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streaming.judge.record import Published, Received
from streaming.judge.verdict import Verdict

# After this time a release process that was killed is back.
_RELEASE_BACK_MS = 5_000


@dataclass(frozen=True)
class Lateness:
    """Percentiles and the maximum of the lateness of `count` messages, in ms; NaN if `count` is 0."""

    count: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Result:
    """The verdict and the lateness of messages.

    - `release_down`: delayed messages that were due just after a release process was killed
    - `plain`: plain messages
    - `delayed`: all delayed messages
    """

    verdict: Verdict
    release_down: Lateness
    plain: Lateness
    delayed: Lateness

    @property
    def holds(self) -> bool:
        """Whether the contract was kept."""
        return not self.verdict.problems()


def result_of(
    verdict: Verdict, published: Mapping[str, Published], received: Sequence[Received], release_killed_ms: int
) -> Result:
    """Return `verdict` together with the lateness of the messages. `published` is by message id.

    A release process was killed at `release_killed_ms`, epoch ms.
    """
    release_down, plain, delayed = [], [], []
    for record in received:
        message = published.get(record.id)
        if message is None or message.error is not None:
            continue
        lateness_ms = record.received_ms - message.due_ms
        if message.deliver_at_ms is None:
            plain.append(lateness_ms)
            continue
        delayed.append(lateness_ms)
        if 0 <= message.due_ms - release_killed_ms < _RELEASE_BACK_MS:
            release_down.append(lateness_ms)
    return Result(verdict, *map(_lateness, (release_down, plain, delayed)))


def _lateness(values_ms: list[int]) -> Lateness:
    if not values_ms:
        return Lateness(0, float("nan"), float("nan"), float("nan"))
    p50, p99 = np.percentile(values_ms, [50, 99])
    return Lateness(len(values_ms), float(p50), float(p99), float(max(values_ms)))
