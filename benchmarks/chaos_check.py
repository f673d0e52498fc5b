"""The campaign's checker: what the output topics say, against what was published. No code of the service's.

Order is promised to messages that were accepted before they were due. From outside, a message is known to be accepted
once a later record of its input partition has come out: a batch takes a partition's records in the order of offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.receiver import COLUMNS, Received

Ints = npt.NDArray[np.int64]

FAULTS = ("lost", "duplicates", "early", "inversions", "altered", "misplaced")
# Of all messages: a smaller share that was held to its order proves little about order.
LEAST_IN_ORDER = 0.1


@dataclass(frozen=True)
class Published:
    """What was published: `count` messages numbered from 0, and for a number the topic asked for, and the key."""

    count: int
    topic_of: Callable[[int], str]
    key_of: Callable[[int], bytes | None]


@dataclass(frozen=True)
class Gap:
    """The time from a fault to the next delivery. `alone`: messages flowed before it, and no other struck into it."""

    seconds: float
    alone: bool


def gaps_s(
    outputs: Mapping[str, Received], faults: Sequence[tuple[float, float]], on_the_way_s: float
) -> list[Gap | None]:
    """Return the gap of each fault, given by its begin and end (epoch s), in order; None if nothing came behind it.

    What is received within `on_the_way_s` of the fault was delivered before it.
    """
    times = np.sort(np.concatenate([output["received_us"] for output in outputs.values()])) / 1e6
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


def broken(found: Mapping[str, int], published: int) -> list[str]:
    """Return what of `faults_of` breaks the contract, or leaves it unproven; nothing if it was kept."""
    told = [f"{name}: {found[name]:,}" for name in FAULTS if found[name]]
    if found["in_order"] < LEAST_IN_ORDER * published:
        told.append(f"order was checked for too few messages: {found['in_order']:,} of {published:,}")
    return told


def faults_of(outputs: Mapping[str, Received], published: Published, lookahead_us: int) -> dict[str, int]:
    """Count each of `FAULTS`.

    `outputs` are the records of each topic. A message counts as accepted in time if that is known `lookahead_us` before
    it is due; `in_order` says how many were, so that nobody takes a check of nothing for a proof.
    """
    every = {name: np.concatenate([output[name] for output in outputs.values()]) for name in COLUMNS}
    distinct = len(np.unique(every["number"]))
    known_by_us = _known_by_us(every)
    inversions = in_order = start = 0
    for output in outputs.values():
        end = start + len(output["number"])
        bound = known_by_us[start:end] < output["due_us"] - lookahead_us
        inversions += _inversions(output, bound)
        in_order += int(bound.sum())
        start = end
    return {
        "lost": published.count - distinct,
        "duplicates": len(every["number"]) - distinct,
        "early": int((every["received_us"] < every["due_us"]).sum()),
        "inversions": inversions,
        "altered": int((every["header_ms"] != every["due_us"] // 1000).sum()) + _misnamed(every),
        "misplaced": sum(_misplaced(topic, output, published) for topic, output in outputs.items()),
        "in_order": in_order,
    }


def _known_by_us(records: Mapping[str, Ints]) -> Ints:
    """Return, for each record, when the first record of its input partition at or behind its offset was received."""
    known = np.empty(len(records["number"]), dtype=np.int64)
    for partition in np.unique(records["in_partition"]):
        at = np.flatnonzero(records["in_partition"] == partition)
        at = at[np.argsort(records["in_offset"][at], kind="stable")]
        known[at] = np.minimum.accumulate(records["received_us"][at][::-1])[::-1]
    return known


def _inversions(output: Received, bound: npt.NDArray[np.bool_]) -> int:
    """Count records of `bound` that come behind one of their output partition that belongs behind them."""
    count = 0
    for partition in np.unique(output["partition"]):
        at = np.flatnonzero(output["partition"] == partition)
        places = np.lexsort([output[name][at] for name in ("in_offset", "in_partition", "due_us")])
        rank = np.empty(len(at), dtype=np.int64)
        rank[places] = np.arange(len(at))
        count += int((bound[at] & (rank < np.maximum.accumulate(rank))).sum())
    return count


def _misnamed(records: Mapping[str, Ints]) -> int:
    """Count records whose message id is not in the order in which the publisher sent to that partition."""
    wrong = 0
    for partition in np.unique(records["in_partition"]):
        at = np.flatnonzero(records["in_partition"] == partition)
        numbers = records["number"][at][np.argsort(records["in_offset"][at], kind="stable")]
        # A duplicate is counted as that.
        wrong += int((np.diff(numbers) < 0).sum())
    return wrong


def _misplaced(topic: str, output: Received, published: Published) -> int:
    """Count records that belong in another topic, and those that lie in another partition than the first of their key.

    Those without a key go by the input partition instead.
    """
    first: dict[bytes | int, int] = {}
    wrong = 0
    # In the order of publishing, so that the first is the same one whatever went wrong behind it.
    order = np.argsort(output["number"], kind="stable")
    rows = (output[name][order].tolist() for name in ("number", "in_partition", "partition"))
    for number, in_partition, partition in zip(*rows, strict=True):
        if published.topic_of(number) != topic:
            wrong += 1
            continue
        key = published.key_of(number)
        wrong += partition != first.setdefault(in_partition if key is None else key, partition)
    return wrong
