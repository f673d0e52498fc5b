"""A cancel of a loaded message is known as long as any piece is loaded that was loaded before it."""

from __future__ import annotations

import math
import time

from state.buckets.cancelled import NEVER_MS
from streaming.job.sealed.loaded_cancels import LoadedCancels
from tests.messages import cancelled

IN = ("in", 0)


def known(cancels: LoadedCancels, start_ms: int, end_ms: int) -> list[int]:
    return [offset for offsets in cancels.due_between(start_ms, end_ms).values() for offset in offsets.tolist()]


def test_cancelled_messages_that_were_loaded_and_may_be_due_in_a_range_are_known() -> None:
    cancels = LoadedCancels()
    several = [(*IN, 1, 100, 200), (*IN, 2, 300, 310), (*IN, 3, NEVER_MS, 300), (*IN, 4, 500, 600)]
    cancels.add(cancelled(several), horizon_ms=500)
    assert known(cancels, 0, 1_000) == [1, 2]
    assert [known(cancels, 200, 300), known(cancels, 201, 300), known(cancels, 201, 301)] == [[1], [], [2]]
    cancels.forget_from(300)
    assert known(cancels, 0, 1_000) == [1]


def test_cancels_are_forgotten_once_due_or_older_than_all_loads() -> None:
    cancels = LoadedCancels()
    begun_s = time.monotonic()
    cancels.add(cancelled([(*IN, 1, 100, 200), (*IN, 2, 100, 10_000)]), horizon_ms=500)
    cancels.forget_before(200, begun_s)
    assert known(cancels, 0, 1_000) == [1, 2]
    cancels.forget_before(201, begun_s)
    assert known(cancels, 0, 1_000) == [2]
    later_s = time.monotonic() + 1
    cancels.add(cancelled([]), horizon_ms=500)
    cancels.forget_before(201, later_s)
    assert known(cancels, 0, 1_000) == []
    cancels.add(cancelled([(*IN, 3, 100, 10_000)]), horizon_ms=500)
    cancels.forget_before(201, math.inf)
    assert known(cancels, 0, 1_000) == [], "nothing is loaded"
