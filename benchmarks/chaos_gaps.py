"""How long deliveries ceased after each fault of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Gap:
    """The time from a fault to the next delivery. `alone`: messages flowed before it, and no other struck into it."""

    seconds: float
    alone: bool


def gaps_s(
    received_s: npt.NDArray[np.float64], faults: Sequence[tuple[float, float]], on_the_way_s: float
) -> list[Gap | None]:
    """Return the gap of each fault, given by its begin and end (epoch s), in order; None if nothing came behind it.

    `received_s` is when each message came, in any order. What is received within `on_the_way_s` of the fault was
    delivered before it.
    """
    times = np.sort(received_s)
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
