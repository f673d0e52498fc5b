"""The time from a fault to the next delivery, and whether that fault alone caused it."""

from __future__ import annotations

import numpy as np

from benchmarks.chaos.gaps import Gap, gaps_s


def test_one_fault_alone_causes_a_gap_if_messages_flowed_before_it_and_no_other_fault_struck_in_the_gap() -> None:
    received_s = np.array([90.0, 1, 9, 30, 41])
    # The third fault strikes before a message has arrived after the second: neither caused its gap alone.
    faults = [(9.5, 10), (35, 36), (40.5, 42), (45, 50), (95, 96)]
    gaps = gaps_s([received_s], [(begin, end) for begin, end in faults], 1)
    assert gaps == [Gap(20.5, True), Gap(6, False), Gap(49.5, False), Gap(45, False), None]


def test_a_fault_that_strikes_after_messages_flow_again_causes_its_gap_alone() -> None:
    received_s = np.array([1.0, 20, 31, 50])
    assert gaps_s([received_s], [(5, 6), (30, 30), (40, 41)], 2) == [Gap(15, True), Gap(20, False), Gap(10, True)]


def test_a_fault_has_struck_until_the_last_shard_delivers_again() -> None:
    shards = [np.array([1.0, 7, 30]), np.array([2.0, 19, 30])]
    assert gaps_s(shards, [(5, 5), (40, 40)], 1) == [Gap(14, True), None]
    # Only the first shard delivered between the first two faults, and only the second one between the last two.
    assert gaps_s(shards, [(5, 5), (18, 18), (25, 25)], 1) == [Gap(14, False), Gap(12, False), Gap(5, False)]
