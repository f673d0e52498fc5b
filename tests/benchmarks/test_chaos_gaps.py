"""The campaign's checker sees every fault, and takes nothing for one that the contract allows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.chaos_check import FAULTS, Gap, Published, broken, faults_of, gaps_s
from benchmarks.receiver import COLUMNS, Received

_LOOKAHEAD_US = 2_000_000
_S = 1_000_000
# A message: number, due (s), received (s). Numbers are offsets of input partition 0 too.
Row = tuple[int, float, float]


def _received(*rows: Row, **altered: list[int]) -> Received:
    columns = {name: np.zeros(len(rows), np.int64) for name in COLUMNS}
    columns["offset"] = np.arange(len(rows))
    columns["number"] = columns["in_offset"] = np.array([row[0] for row in rows], np.int64)
    columns["due_us"] = np.array([int(row[1] * _S) for row in rows], np.int64)
    columns["received_us"] = np.array([int(row[2] * _S) for row in rows], np.int64)
    columns["header_ms"] = columns["due_us"] // 1000
    return Received(columns | {name: np.array(values) for name, values in altered.items()})


def _faults(*rows: Row, published: int | None = None, **altered: list[int]) -> dict[str, int]:
    asked = Published(published or len(rows), lambda number: "out", lambda number: b"%d" % number)
    return _counted({"out": _received(*rows, **altered)}, asked)


def _counted(outputs: dict[str, Received], asked: Published) -> dict[str, int]:
    found = faults_of(outputs, asked, _LOOKAHEAD_US)
    return {name: found[name] for name in FAULTS if found[name]}


def _asked(count: int) -> Published:
    """Every third message to another topic; two keys by turns, and none for every fourth message."""
    return Published(
        count,
        lambda number: "other" if number % 3 == 0 else "out",
        lambda number: None if number % 4 == 3 else b"%d" % (number % 2),
    )


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


def test_a_message_in_another_topic_than_it_asked_for_is_misplaced() -> None:
    kept = {"other": _received((0, 1, 1), (3, 4, 4)), "out": _received((1, 2, 2), (2, 3, 3))}
    assert _counted(kept, _asked(4)) == {}
    ignored = {"other": _received(), "out": _received((0, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 4))}
    assert _counted(ignored, _asked(4)) == {"misplaced": 2}


def test_a_key_in_two_partitions_of_a_topic_is_misplaced() -> None:
    # 1 and 5 have the same key, 2 and 4 another.
    rows: list[Row] = [(1, 1, 1), (2, 2, 2), (4, 4, 4), (5, 5, 5)]
    other = {"other": _received((0, 0, 0), (3, 3, 3), partition=[4, 5])}
    assert _counted(other | {"out": _received(*rows, partition=[0, 1, 1, 0])}, _asked(6)) == {}
    assert _counted(other | {"out": _received(*rows, partition=[0, 1, 1, 2])}, _asked(6)) == {"misplaced": 1}


def test_a_message_without_a_key_goes_by_its_input_partition() -> None:
    rows: list[Row] = [(7, 1, 1), (11, 2, 2), (19, 3, 3)]
    asked = Published(3, lambda number: "out", lambda number: None)
    right = {"out": _received(*rows, partition=[0, 1, 0], in_partition=[2, 3, 2])}
    wrong = {"out": _received(*rows, partition=[0, 1, 1], in_partition=[2, 3, 2])}
    assert (_counted(right, asked), _counted(wrong, asked)) == ({}, {"misplaced": 1})


def test_what_breaks_the_contract_is_told_and_so_is_an_order_that_was_hardly_checked() -> None:
    found = dict.fromkeys(FAULTS, 0) | {"in_order": 100}
    assert broken(found, 1000) == []
    assert broken(found | {"lost": 2, "misplaced": 1}, 1000) == ["lost: 2", "misplaced: 1"]
    assert broken(found | {"in_order": 99}, 1000) == ["order was checked for too few messages: 99 of 1,000"]


def test_a_gap_is_that_of_a_fault_alone_if_messages_flowed_before_it_and_no_other_struck_into_it() -> None:
    received = {"out": _received(*((number, at, at) for number, at in enumerate((1, 9, 30, 41, 90))))}
    # Before the third nothing had flowed since the second ended, which the third struck into.
    faults = [(9.5, 10), (35, 36), (40.5, 42), (45, 50), (95, 96)]
    gaps = gaps_s(received, [(begin, end) for begin, end in faults], 1)
    assert gaps == [Gap(20.5, True), Gap(6, False), Gap(49.5, False), Gap(45, False), None]


def test_a_fault_that_strikes_where_messages_flow_again_is_alone() -> None:
    received = {"out": _received((0, 1, 1), (1, 20, 20), (2, 31, 31), (3, 50, 50))}
    assert gaps_s(received, [(5, 6), (30, 30), (40, 41)], 2) == [Gap(15, True), Gap(20, False), Gap(10, True)]
