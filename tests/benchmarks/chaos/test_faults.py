"""The plan of a campaign."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.chaos.contention import KINDS
from benchmarks.chaos.faults import ON_A_CLUSTER, plan_faults, tally


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_plan() -> None:
    assert plan_faults(7, 600) == plan_faults(7, 600)
    assert plan_faults(7, 600) != plan_faults(8, 600)


@pytest.mark.parametrize("seed", range(20))
def test_half_an_hour_has_sixty_faults_of_all_kinds_that_do_not_overlap(seed: int) -> None:
    plan = plan_faults(seed, 1800)
    assert len(plan) >= 60
    assert tally(plan).keys() == ON_A_CLUSTER.keys()
    assert all(fault.at_s + fault.lasts_s < after.at_s for fault, after in pairwise(plan))
    assert all(fault.at_s < 1800 for fault in plan)


def test_a_driver_has_time_to_start_after_each_of_the_restarting_kinds() -> None:
    plan = plan_faults(7, 3600, KINDS, ("driver-kill", "driver-pause"))
    assert tally(plan).keys() == KINDS.keys()
    quiet: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for fault, after in pairwise(plan):
        quiet[fault.kind].append(after.at_s - fault.at_s - fault.lasts_s)
    for kind, seconds in quiet.items():
        restarting = kind in ("driver-kill", "driver-pause")
        assert all((44.8 if restarting else 7.8) < each < (60.2 if restarting else 22.2) for each in seconds)
