"""The plan of a campaign."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.chaos_faults import plan_faults, tally


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_plan() -> None:
    assert plan_faults(7, 600) == plan_faults(7, 600)
    assert plan_faults(7, 600) != plan_faults(8, 600)


@pytest.mark.parametrize("seed", range(20))
def test_half_an_hour_has_sixty_faults_of_all_kinds_that_do_not_overlap(seed: int) -> None:
    plan = plan_faults(seed, 1800)
    assert len(plan) >= 60
    assert len(tally(plan)) == 7
    assert all(fault.at_s + fault.lasts_s < after.at_s for fault, after in pairwise(plan))
    assert all(fault.at_s < 1800 for fault in plan)
