"""Only messages that were staged in time are held to their order."""

from __future__ import annotations

import numpy as np

from benchmarks.held_order import faults_of, order_faults
from benchmarks.receiver import COLUMNS, Received
from streaming.judge.acceptance import Acceptance, CheckpointLog, CommittedBatch
from streaming.judge.forwarded import Forwarded

TOPIC = "in"


def received(*rows: tuple[int, int, int]) -> Received:
    """Records in their order, each with (output partition, due time in ms, input offset)."""
    columns = {name: np.zeros(len(rows), np.int64) for name in COLUMNS}
    partitions, dues_ms, offsets = np.array(rows).T
    columns |= {"partition": partitions, "due_us": dues_ms * 1000, "in_offset": offsets}
    return Received(columns)


def faults(records: Received, *held: bool) -> tuple[int, int]:
    found = order_faults(records, np.array(held))
    return found["inversions"], found["out_of_order"]


def test_records_in_order_have_no_fault() -> None:
    assert faults(received((0, 5, 0), (0, 5, 1), (0, 6, 2), (1, 4, 3)), True, True, True, True) == (0, 0)


def test_a_held_record_behind_one_that_is_due_later_is_an_inversion() -> None:
    assert faults(received((0, 9, 0), (0, 5, 1), (0, 8, 2)), True, True, True) == (2, 2)


def test_a_held_record_behind_one_of_its_due_time_with_a_larger_offset_is_out_of_order() -> None:
    assert faults(received((0, 5, 1), (0, 5, 0)), True, True) == (0, 1)


def test_a_late_record_may_come_behind_others_but_others_not_behind_it() -> None:
    assert faults(received((0, 9, 0), (0, 5, 1)), True, False) == (0, 0)
    assert faults(received((0, 9, 0), (0, 5, 1)), False, True) == (1, 1)


def test_the_faults_of_a_load_have_the_order_of_the_held_ones_and_two_shares() -> None:
    batches = {
        0: CommittedBatch(cutoff_ms=60_000, committed_ms=1_000, ends={(TOPIC, 0): 1}),
        1: CommittedBatch(cutoff_ms=65_000, committed_ms=10_000, ends={(TOPIC, 0): 4}),
    }
    records = received((0, 20_000, 1), (0, 10_500, 2), (0, 30_000, 3))
    found = faults_of(records, 3, 0, TOPIC, Acceptance([CheckpointLog(batches=batches)]))
    assert (found["held_to_order"], found["forwarded"]) == (0.667, 0.0)
    assert found["inversions"] == 0
    assert records.faults(3)["inversions"] == 1
    # Seen in the near log a second before it was due.
    forwarded = Forwarded({(TOPIC, 0, 2)}, {(TOPIC, 0, 2): 9_500})
    found = faults_of(records, 3, 0, TOPIC, Acceptance([CheckpointLog(batches=batches)], forwarded))
    assert (found["held_to_order"], found["forwarded"]) == (1.0, 0.333)
    assert found["inversions"] == 1
