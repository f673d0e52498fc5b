"""The faults that a benchmark counts: each is planted into records without faults."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.aims import FAULTS
from benchmarks.receiver import COLUMNS, Received

FIRST, COUNT = 1000, 8


def records() -> dict[str, list[int]]:
    """Return eight messages of two input partitions, correctly delivered to two output partitions."""
    number = list(range(FIRST, FIRST + COUNT))
    due_us = [1_000_000, 1_000_000, 2_000_000, 3_000_000] * 2
    return {
        "partition": [0] * 4 + [1] * 4,
        "offset": [0, 1, 2, 3] * 2,
        "number": number,
        "due_us": due_us,
        "received_us": [due + 5000 for due in due_us],
        "header_ms": [due // 1000 for due in due_us],
        "in_partition": [0, 1, 0, 1] * 2,
        "in_offset": [10, 10, 11, 11, 20, 20, 21, 21],
    }


def faults_in(columns: dict[str, list[int]]) -> dict[str, int]:
    received = Received({name: np.array(columns[name], np.int64) for name in COLUMNS})
    return {name: count for name, count in received.faults(COUNT, FIRST).items() if count}


def swapped(columns: dict[str, list[int]], one: int, other: int) -> dict[str, list[int]]:
    """Swap two records, but keep the positions that they were delivered to."""
    for name in COLUMNS:
        if name not in ("partition", "offset"):
            values = columns[name]
            values[one], values[other] = values[other], values[one]
    return columns


def test_all_faults_are_counted_and_correct_deliveries_have_none() -> None:
    assert faults_in(records()) == {}
    received = Received({name: np.array(column, np.int64) for name, column in records().items()})
    assert tuple(received.faults(COUNT, FIRST)) == FAULTS


def test_a_message_that_came_before_it_was_due_is_early() -> None:
    columns = records()
    columns["received_us"][2] = columns["due_us"][2] - 1
    assert faults_in(columns) == {"early": 1}


def test_a_message_behind_a_later_one_is_an_inversion() -> None:
    assert faults_in(swapped(records(), 2, 3)) == {"inversions": 1, "out_of_order": 1}


@pytest.mark.parametrize("order", ["in_partition", "in_offset"])
def test_messages_with_the_same_due_time_are_ordered_by_input_partition_and_offset(order: str) -> None:
    columns = records()
    columns["in_partition"][:2], columns["in_offset"][:2] = [0, 0], [10, 10]
    columns[order][0] += 1
    assert faults_in(columns) == {"out_of_order": 1}


def test_a_message_that_is_missing_is_lost() -> None:
    assert faults_in({name: column[:-1] for name, column in records().items()}) == {"lost": 1}


def test_a_message_that_came_twice_is_a_duplicate() -> None:
    columns = records()
    for name, column in columns.items():
        column.append(column[-1] + (name == "offset"))
    # The copy has the same order key as the original, and so is in order.
    assert faults_in(columns) == {"duplicates": 1}


def test_a_message_with_another_due_time_in_its_header_is_altered() -> None:
    columns = records()
    columns["header_ms"][0] += 1
    assert faults_in(columns) == {"altered": 1}


@pytest.mark.parametrize("number", [FIRST - 1, FIRST + COUNT])
def test_a_message_that_nobody_published_does_not_replace_a_lost_one(number: int) -> None:
    columns = records()
    columns["number"][0] = number
    assert faults_in(columns) == {"lost": 1, "altered": 1}
