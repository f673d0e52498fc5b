"""Order among the messages that were handed over in time: others may come behind messages that are due later."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.receiver import Received
from streaming.judge.acceptance import Acceptance
from streaming.judge.record import Published


def faults_of(received: Received, published: int, first: int, topic: str, acceptance: Acceptance) -> dict[str, float]:
    """Return the faults of records (`Received.faults`), of order only those of the held ones, and the share of these.

    `published` messages were numbered from `first`, in the input topic `topic`.
    """
    held = must_be_in_order(received, topic, acceptance)
    share = round(float(held.mean()), 3) if len(held) else 0.0
    return received.faults(published, first) | order_faults(received, held) | {"held_to_order": share}


def must_be_in_order(received: Received, topic: str, acceptance: Acceptance) -> npt.NDArray[np.bool_]:
    """Return which records the judge (`streaming.judge`) holds to their order; `topic` is the input topic."""
    partitions, offsets, dues_us = (received[name].tolist() for name in ("in_partition", "in_offset", "due_us"))
    held = [
        acceptance.must_be_in_order(_published(topic, partition, offset, due_us // 1000))
        for partition, offset, due_us in zip(partitions, offsets, dues_us, strict=True)
    ]
    return np.array(held, np.bool_)


def _published(topic: str, partition: int, offset: int, due_ms: int) -> Published:
    return Published(f"{topic}/{partition}/{offset}", 0, None, None, (), "", deliver_at_ms=due_ms)


def order_faults(received: Received, held: npt.NDArray[np.bool_]) -> dict[str, int]:
    """Count the `held` records that came behind one of their partition that belongs after them.

    - `inversions`: behind one that is due later.
    - `out_of_order`: behind one that the contract's whole order puts after them.
    """
    names = ("partition", "due_us", "in_partition", "in_offset")
    largest: dict[int, tuple[int, int, int]] = {}
    faults = {"inversions": 0, "out_of_order": 0}
    for is_held, partition, *rest in zip(held.tolist(), *(received[name].tolist() for name in names), strict=True):
        key = (rest[0], rest[1], rest[2])
        before = largest.get(partition)
        if before is None or key > before:
            largest[partition] = key
        elif is_held:
            faults["out_of_order"] += 1
            faults["inversions"] += key[0] < before[0]
    return faults
