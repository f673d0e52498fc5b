"""Order among the messages that were staged in time. Other messages may come after messages that are due later."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.receiver import Received
from streaming.judge.acceptance import Acceptance
from streaming.judge.record import Published


def faults_of(received: Received, published: int, first: int, topic: str, acceptance: Acceptance) -> dict[str, float]:
    """Return the faults of records (`Received.faults`), of order only for held ones, and what forwarders did.

    `published` messages were numbered from `first`, in the input topic `topic`. `held_to_order` is the share of the
    records that the judge holds to their order, and `forwarded` of those that forwarders took. `near_p50_ms` and
    `near_p99_ms` say how long after its due time such a record was in the near log: of a plain message, how long after
    it was published; of others, less than nothing.
    """
    held, forwarded = (np.zeros(len(received["number"]), np.bool_) for _ in range(2))
    near_ms: list[int] = []
    for row, message in enumerate(_published(received, topic)):
        held[row], forwarded[row] = acceptance.must_be_in_order(message), acceptance.is_forwarded(message)
        if forwarded[row] and (seen_ms := acceptance.staged_ms(message)) is not None:
            near_ms.append(seen_ms - message.due_ms)
    shares = {"held_to_order": held, "forwarded": forwarded}
    faults = received.faults(published, first) | order_faults(received, held)
    means = {name: round(float(each.mean()), 3) if len(each) else 0.0 for name, each in shares.items()}
    return faults | means | {f"near_p{each}_ms": float(np.percentile(near_ms, each)) for each in (50, 99) if near_ms}


def _published(received: Received, topic: str) -> Iterator[Published]:
    columns = (received[name].tolist() for name in ("in_partition", "in_offset", "due_us"))
    for partition, offset, due_us in zip(*columns, strict=True):
        yield Published(f"{topic}/{partition}/{offset}", 0, None, None, (), "", deliver_at_ms=due_us // 1000)


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
