"""Computes how long deliveries stopped after each fault of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Gap:
    """The time from a fault to the next delivery of each shard that it struck: of the last one to deliver again.

    `alone` is true if the fault is isolated: each shard delivered between the previous fault and this one, and the next
    fault began after the delivery.
    """

    seconds: float
    alone: bool


def gaps_s(
    received_s: Sequence[npt.NDArray[np.float64]], faults: Sequence[tuple[float, float]], on_the_way_s: float
) -> list[Gap | None]:
    """Return the gap of each fault, in order; None if no delivery of one of the shards followed it.

    Args:
        received_s: when each message was received (epoch s), in any order, of each shard that the faults strike.
        faults: start and end of each fault (epoch s).
        on_the_way_s: a message received within this time after a fault counts as delivered before it.
    """
    of_shards = [_gaps_of_shard(np.sort(times), faults, on_the_way_s) for times in received_s]
    return [_widest(gaps) for gaps in zip(*of_shards, strict=True)]


def _gaps_of_shard(
    times: npt.NDArray[np.float64], faults: Sequence[tuple[float, float]], on_the_way_s: float
) -> list[Gap | None]:
    gaps: list[Gap | None] = []
    for number, (at_s, _) in enumerate(faults):
        later = int(np.searchsorted(times, at_s + on_the_way_s))
        if later == len(times):
            gaps.append(None)
            continue
        before = int(np.searchsorted(times, at_s))
        flowed = number == 0 or (before > 0 and times[before - 1] > faults[number - 1][1])
        struck_into = number + 1 < len(faults) and faults[number + 1][0] < times[later]
        gaps.append(Gap(float(times[later] - at_s), bool(flowed and not struck_into)))
    return gaps


def _widest(gaps: Sequence[Gap | None]) -> Gap | None:
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        return None
    return Gap(max(gap.seconds for gap in known), all(gap.alone for gap in known))
