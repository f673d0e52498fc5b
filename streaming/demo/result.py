"""The result of the demo: the judge's verdict, and the lateness of the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streaming.judge.record import Published, Received
from streaming.judge.verdict import Verdict


@dataclass(frozen=True)
class Outage:
    """The time from the kill to the first delivery after it, epoch ms."""

    killed_ms: int
    back_ms: int


@dataclass(frozen=True)
class Lateness:
    """Percentiles of the lateness of `count` messages, in ms; NaN if `count` is 0."""

    count: int
    p50: float
    p99: float


@dataclass(frozen=True)
class Result:
    """The verdict and the lateness of messages.

    `overall` is for all delayed messages, `without_outage` for those that did not fall due during the outage, `plain`
    for plain messages.
    """

    verdict: Verdict
    overall: Lateness
    without_outage: Lateness
    plain: Lateness

    @property
    def holds(self) -> bool:
        """Whether the contract was kept."""
        return not self.verdict.problems()


def result_of(
    verdict: Verdict, published: Mapping[str, Published], received: Sequence[Received], outage: Outage
) -> Result:
    """Return `verdict` together with the lateness of the messages. `published` is by message id."""
    delayed, without_outage, plain = [], [], []
    for record in received:
        message = published.get(record.id)
        if message is None or message.error is not None:
            continue
        lateness_ms = record.received_ms - message.due_ms
        if message.deliver_at_ms is None:
            plain.append(lateness_ms)
            continue
        delayed.append(lateness_ms)
        if record.received_ms < outage.killed_ms or message.due_ms > outage.back_ms:
            without_outage.append(lateness_ms)
    return Result(verdict, _lateness(delayed), _lateness(without_outage), _lateness(plain))


def _lateness(values_ms: list[int]) -> Lateness:
    if not values_ms:
        return Lateness(0, float("nan"), float("nan"))
    p50, p99 = np.percentile(values_ms, [50, 99])
    return Lateness(len(values_ms), float(p50), float(p99))
