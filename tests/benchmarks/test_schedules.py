"""Each occurrence of a schedule counts as a message of its own, and only the first ones of each count."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.receiver import COLUMNS, Received
from benchmarks.schedules import growth, occurrences_in

_SCHEDULES, _OF_EACH = 2, 3


def records(*came: tuple[int, int]) -> Received:
    """Return occurrences, given as the schedule and the instant in seconds; schedule n comes first at 60 + n."""
    columns = {name: np.zeros(len(came), np.int64) for name in COLUMNS}
    number, at_s = np.array(came).T
    columns |= {"number": number, "due_us": (60 + number) * 1_000_000, "header_ms": at_s * 1000, "in_offset": number}
    return Received(columns | {"offset": np.arange(len(came)), "received_us": at_s * 1_000_000 + 5_000})


_EVERY = [(number, 60 + number + 60 * turn) for turn in range(_OF_EACH) for number in range(_SCHEDULES)]


def faults(*came: tuple[int, int]) -> dict[str, int]:
    received = occurrences_in(records(*came), _SCHEDULES, _OF_EACH)
    return {name: count for name, count in received.faults(_SCHEDULES * _OF_EACH).items() if count}


def test_occurrences_are_numbered_through_and_late_by_their_instants() -> None:
    # One more, of the first schedule.
    received = occurrences_in(records(*_EVERY, (0, 240)), _SCHEDULES, _OF_EACH)
    assert received["number"].tolist() == list(range(6))
    assert received.lateness_ms.tolist() == [5.0] * 6
    assert faults(*_EVERY, (0, 240)) == {}


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([*_EVERY[:3], *_EVERY[4:]], {"lost": 1}),
        ([*_EVERY, _EVERY[-1]], {"duplicates": 1}),
        ([*_EVERY[:5], (1, 182)], {"altered": 1}),
        ([_EVERY[1], _EVERY[0], *_EVERY[2:]], {"inversions": 1, "out_of_order": 1}),
        ([*_EVERY, (0, 0)], {"altered": 1, "duplicates": 0}),
    ],
)
def test_each_fault_is_counted(came: list[tuple[int, int]], expected: dict[str, int]) -> None:
    found = faults(*came)
    assert {name: found.get(name, 0) for name in expected} == expected


def test_thirds_are_compared() -> None:
    rising = [(float(at_s), float(at_s)) for at_s in range(90)]
    samples = {"table_mb": rising, "files": rising[:80], "memory_mb": rising, "batch_steps_s": rising[50:]}
    assert growth(samples, 0, 90) == {
        "table_mb_first": 14.5, "table_mb_last": 74.5, "files_first": 14.5, "files_last": 69.5,
        "memory_mb_first": 29, "memory_mb_last": 89, "batch_steps_s_last": 74.5,
    }  # fmt: skip
