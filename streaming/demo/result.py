"""The result of the demo: the judge's verdict, and the lateness of the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streaming.judge.acceptance import Acceptance
from streaming.judge.record import Published, Received
from streaming.judge.verdict import Verdict

# After this time a release process that was killed is back.
_RELEASE_BACK_MS = 5_000


@dataclass(frozen=True)
class Outage:
    """What the demo did to the job. Instants are epoch ms.

    - `killed_ms`, `back_ms`: when the driver was killed, and when its successor had read all that was published
    - `covered_ms`: what was accepted before the kill and is due before this instant had been handed over
    - `release_killed_ms`: when a release process was killed
    """

    killed_ms: int
    back_ms: int
    covered_ms: int
    release_killed_ms: int


@dataclass(frozen=True)
class Lateness:
    """Percentiles of the lateness of `count` messages, in ms; NaN if `count` is 0."""

    count: int
    p50: float
    p99: float


@dataclass(frozen=True)
class Result:
    """The verdict and the lateness of messages.

    - `in_time`: delayed messages that were accepted in time, and due while no fault was on
    - `job_down`: delayed messages that had been handed over, and were due while the job was down
    - `release_down`: delayed messages accepted in time that were due just after a release process was killed
    - `overall`: all delayed messages, also those that the job could not read in time
    - `plain`: plain messages
    """

    verdict: Verdict
    in_time: Lateness
    job_down: Lateness
    release_down: Lateness
    overall: Lateness
    plain: Lateness

    @property
    def holds(self) -> bool:
        """Whether the contract was kept."""
        return not self.verdict.problems()


def result_of(
    verdict: Verdict,
    published: Mapping[str, Published],
    received: Sequence[Received],
    acceptance: Acceptance,
    outage: Outage,
) -> Result:
    """Return `verdict` together with the lateness of the messages. `published` is by message id."""
    in_time, job_down, release_down, overall, plain = [], [], [], [], []
    for record in received:
        message = published.get(record.id)
        if message is None or message.error is not None:
            continue
        lateness_ms = record.received_ms - message.due_ms
        if message.deliver_at_ms is None:
            plain.append(lateness_ms)
            continue
        overall.append(lateness_ms)
        if not acceptance.must_be_in_order(message):
            continue
        if outage.killed_ms <= message.due_ms < outage.back_ms:
            committed_ms = acceptance.committed_ms(message)
            if message.due_ms < outage.covered_ms and committed_ms is not None and committed_ms < outage.killed_ms:
                job_down.append(lateness_ms)
        elif 0 <= message.due_ms - outage.release_killed_ms < _RELEASE_BACK_MS:
            release_down.append(lateness_ms)
        else:
            in_time.append(lateness_ms)
    return Result(verdict, *map(_lateness, (in_time, job_down, release_down, overall, plain)))


def _lateness(values_ms: list[int]) -> Lateness:
    if not values_ms:
        return Lateness(0, float("nan"), float("nan"))
    p50, p99 = np.percentile(values_ms, [50, 99])
    return Lateness(len(values_ms), float(p50), float(p99))
