"""What the demo has to show for itself: the judge's verdict, and how late its messages were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streaming.judge.record import Published, Received
from streaming.judge.verdict import Verdict


@dataclass(frozen=True)
class Outage:
    """From the kill to the first delivery after it, epoch ms."""

    killed_ms: int
    back_ms: int


@dataclass(frozen=True)
class Lateness:
    """Of `count` messages, in ms; NaN of none."""

    count: int
    p50: float
    p99: float


@dataclass(frozen=True)
class Result:
    """The verdict; the lateness of delayed messages, of those that did not fall due in the outage, of plain ones."""

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
    """Add to the verdict how late the messages were, by id, in all records that were received."""
    delayed, spared, plain = [], [], []
    for record in received:
        message = published.get(record.id)
        if message is None or message.error is not None:
            continue
        late = record.received_ms - message.due_ms
        if message.deliver_at_ms is None:
            plain.append(late)
            continue
        delayed.append(late)
        if record.received_ms < outage.killed_ms or message.due_ms > outage.back_ms:
            spared.append(late)
    return Result(verdict, _lateness(delayed), _lateness(spared), _lateness(plain))


def _lateness(values: list[int]) -> Lateness:
    if not values:
        return Lateness(0, float("nan"), float("nan"))
    p50, p99 = np.percentile(values, [50, 99])
    return Lateness(len(values), float(p50), float(p99))
