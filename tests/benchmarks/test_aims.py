"""The aims of each benchmark, on made-up figures: good figures meet all, a bad or missing figure breaks its aim."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import forward, outage, shards
from benchmarks.outcome import Aim
from tests.benchmarks.aim_case import Breach, Case
from tests.benchmarks.cost_cases import COST_CASES
from tests.benchmarks.punctual_cases import PUNCTUAL_CASES
from tests.benchmarks.rate_cases import RATE_CASES

CASES = PUNCTUAL_CASES | RATE_CASES | COST_CASES


def breaches_of(name: str) -> Iterator[Any]:
    for what, breach in CASES[name].breaches.items():
        yield pytest.param(CASES[name], what, breach, id=f"{name}: {what}")


ALL_BREACHES = [each for name in CASES for each in breaches_of(name)]


def not_met(case: Case, figures: dict[str, dict[str, float]]) -> dict[str, Aim]:
    return {aim.what: aim for aim in case.aims_of(figures) if not aim.met}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_figures_at_their_targets_meet_every_aim(case: Case) -> None:
    assert case.aims_of(case.good)
    assert not_met(case, case.good) == {}


@pytest.mark.parametrize(("case", "what", "breach"), ALL_BREACHES)
def test_a_figure_beyond_its_target_breaks_its_aim(case: Case, what: str, breach: Breach) -> None:
    figures = deepcopy(case.good)
    run_name, name, value = breach
    figures[run_name][name] = value
    broken = not_met(case, figures)
    assert what in broken
    assert broken[what].value is not None


@pytest.mark.parametrize(("case", "what", "breach"), ALL_BREACHES)
def test_a_missing_figure_breaks_its_aim(case: Case, what: str, breach: Breach) -> None:
    figures = deepcopy(case.good)
    run_name, name, _ = breach
    del figures[run_name][name]
    assert not_met(case, figures)[what].value is None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_any_figure_no_aim_is_met(case: Case) -> None:
    assert not any(aim.met for aim in case.aims_of({}))


@pytest.mark.parametrize("name", CASES)
def test_every_aim_is_broken_by_one_of_the_breaches(name: str) -> None:
    case = CASES[name]
    assert {aim.what for aim in case.aims_of(case.good)} == case.breaches.keys()


@pytest.mark.parametrize(("p99_ms", "calm_ms", "met"), [(35.0, 5.0, [True, False]), (60.0, 40.0, [False, True])])
def test_without_a_driver_messages_are_punctual_or_as_late_as_in_the_calm(
    p99_ms: float, calm_ms: float, met: list[bool]
) -> None:
    figures = {outage.DRIVER: {"p99_ms": p99_ms}, outage.CALM: {"p99_ms": calm_ms}}
    assert [aim.met for aim in outage.alternatives_of(figures)] == met


def test_no_benchmark_is_left_out() -> None:
    assert {name.partition(",")[0] for name in CASES} == command.BENCHMARKS.keys()


def test_the_writers_that_stages_opened_count_in_the_second_half_of_the_batches() -> None:
    log = """
    opened writers for shards [0, 1, 2, 3] of the 4 that staged messages
    batch 1: staged messages due before 10, sealed 0 messages in 0 segments, took 0.10 s
    batch 2: staged messages due before 20, sealed 0 messages in 0 segments, took 0.10 s
    opened writers for shards [2] of the 4 that staged messages
    batch 3: staged messages due before 30, sealed 0 messages in 0 segments, took 0.10 s
    batch 4: staged messages due before 40, sealed 0 messages in 0 segments, took 0.10 s
    """
    assert shards.opened_share(log, 4) == 1 / 8
    assert shards.opened_share("", 4) is None


def test_the_sustained_rate_is_the_last_one_below_the_first_that_is_not_kept_up_with() -> None:
    good = {"forwarded": 0.99, "p99_ms": 50.0}
    cases = list(forward.RATES)
    figures = dict.fromkeys(cases, good)
    assert forward.sustained(figures) == 50_000
    assert forward.sustained(figures | {cases[2]: good | {"p99_ms": 50.1}}) == 10_000
    assert forward.sustained(figures | {cases[1]: good | {"forwarded": 0.98}}) == 1_000
    assert forward.sustained({}) == 0
