"""The campaign's checker: what the output topics say, against what was published. No code of the service's.

Order is promised to messages that were accepted before they were due. From outside, a message is known to be accepted
once a later record of its input partition has come out: a batch takes a partition's records in the order of offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from benchmarks.receiver import COLUMNS, Received

Ints = npt.NDArray[np.int64]


def faults_of(outputs: Mapping[str, Received], published: int, lookahead_us: int) -> dict[str, int]:
    """Count lost, duplicate, early, altered, misplaced and inverted messages, of those numbered from 0.

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
        "lost": published - distinct,
        "duplicates": len(every["number"]) - distinct,
        "early": int((every["received_us"] < every["due_us"]).sum()),
        "inversions": inversions,
        "altered": int((every["header_ms"] != every["due_us"] // 1000).sum()) + _misnamed(every),
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
