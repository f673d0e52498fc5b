"""The campaign's checker sees every fault, and takes nothing for one that the contract allows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.chaos_check import faults_of
from benchmarks.receiver import COLUMNS, Received

_LOOKAHEAD_US = 2_000_000
_S = 1_000_000
# A message: number, due (s), received (s). Numbers are offsets of input partition 0 too.
Row = tuple[int, float, float]


def _received(*rows: Row, **altered: list[int]) -> Received:
    columns = {name: np.zeros(len(rows), np.int64) for name in COLUMNS}
    columns["offset"] = np.arange(len(rows))
    columns["number"] = columns["in_offset"] = np.array([row[0] for row in rows])
    columns["due_us"] = np.array([int(row[1] * _S) for row in rows])
    columns["received_us"] = np.array([int(row[2] * _S) for row in rows])
    columns["header_ms"] = columns["due_us"] // 1000
    return Received(columns | {name: np.array(values) for name, values in altered.items()})


def _faults(*rows: Row, published: int | None = None, **altered: list[int]) -> dict[str, int]:
    found = faults_of({"out": _received(*rows, **altered)}, published or len(rows), _LOOKAHEAD_US)
    return {name: count for name, count in found.items() if count and name != "in_order"}


def test_what_keeps_the_contract_has_no_fault() -> None:
    assert _faults((0, 1, 1), (2, 2, 2.5), (1, 3, 3)) == {}


@pytest.mark.parametrize(
    ("rows", "published", "fault"),
    [
        ([(0, 1, 1)], 2, {"lost": 1}),
        ([(0, 1, 1), (0, 1, 1)], 1, {"duplicates": 1}),
        ([(0, 5, 4.9)], 1, {"early": 1}),
        # By the third, which came when the first was not nearly due, the first is known to be accepted.
        ([(2, 1, 1), (1, 20, 20), (0, 10, 20)], 3, {"inversions": 1}),
    ],
)
def test_each_fault_is_counted(rows: list[Row], published: int, fault: dict[str, int]) -> None:
    assert _faults(*rows, published=published) == fault


def test_a_message_that_may_have_been_due_when_it_was_accepted_may_come_late() -> None:
    # Nothing behind number 0 came out before it was due: an outage.
    assert _faults((1, 20, 21), (0, 10, 21)) == {}


def test_equal_due_times_go_by_offset() -> None:
    assert _faults((2, 1, 1), (1, 10, 10), (0, 10, 10)) == {"inversions": 1}


def test_altered_headers_and_ids_are_counted() -> None:
    assert _faults((0, 1, 1), header_ms=[999]) == {"altered": 1}
    assert _faults((0, 1, 1), (1, 2, 2), in_offset=[1, 0]) == {"altered": 1}


def test_order_is_held_within_an_output_partition_only() -> None:
    rows: list[Row] = [(2, 1, 1), (1, 20, 20), (0, 10, 20)]
    assert _faults(*rows, partition=[0, 0, 1]) == {}
