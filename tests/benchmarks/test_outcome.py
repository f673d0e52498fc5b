"""The verdict on a result: which aims must be met, and what else prevents it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.aims import FAULTS, fault_aims, ratio
from benchmarks.outcome import DISTURBED_CORES, Aim, Outcome

MET, NOT_MET = Aim("a", 1.0, 2.0), Aim("b", 3.0, 2.0)
MISSING = Aim("c", None, 2.0, missing="no such run")


def outcome(
    aims: list[Aim], alternatives: list[Aim] | None = None, figures: dict[str, dict[str, float]] | None = None
) -> Outcome:
    return Outcome("any", "about", aims, figures or {}, alternatives=alternatives or [])


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [
        (1.9, False, True),
        (2.0, False, True),
        (2.1, False, False),
        (2.1, True, True),
        (2.0, True, True),
        (1.9, True, False),
    ],
)
def test_a_value_at_the_target_meets_the_aim_in_both_directions(value: float, at_least: bool, met: bool) -> None:
    assert Aim("x", value, 2.0, at_least=at_least).met is met


@pytest.mark.parametrize("at_least", [False, True])
@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_missing_figure_meets_no_aim(value: float | None, at_least: bool) -> None:
    aim = Aim("x", value, 0.0, at_least=at_least)
    assert not aim.met
    assert aim.as_json() == {
        "what": "x", "value": None, "aim": ">= 0" if at_least else "<= 0", "met": False, "missing": "not measured",
    }  # fmt: skip


def test_all_aims_are_needed() -> None:
    assert outcome([MET, MET]).met
    assert not outcome([MET, NOT_MET]).met
    assert not outcome([MET, MISSING]).met


def test_one_met_alternative_is_enough_but_at_least_one_is_needed() -> None:
    assert outcome([MET], [NOT_MET, MET]).met
    assert not outcome([MET], [NOT_MET, MISSING]).met
    assert not outcome([NOT_MET], [MET]).met


def test_without_aims_nothing_is_met() -> None:
    assert not outcome([]).met
    assert not outcome([], [MET]).met


def test_a_result_is_not_met_if_other_processes_took_too_much_cpu() -> None:
    quiet = {"job": {"cpu_elsewhere": DISTURBED_CORES}, "reference": {"cpu_elsewhere": 0.0}}
    assert outcome([MET], figures=quiet).met
    disturbed = outcome([MET], figures=quiet | {"reference": {"idle_cpu_elsewhere": DISTURBED_CORES + 0.01}})
    assert not disturbed.met
    assert disturbed.disturbed == {"reference, idle_cpu_elsewhere": DISTURBED_CORES + 0.01}


@pytest.mark.usefixtures("java")
def test_a_result_file_names_missing_figures_and_a_trial_has_no_verdict(tmp_path: Path) -> None:
    result = outcome([Aim("x", np.float64(1.23456), 2.0, "ms"), MISSING], [MET])
    result.write(tmp_path, 1.0)
    content = json.loads((tmp_path / "any.json").read_text())
    assert content["met"] is False
    assert content["aims"][0] == {"what": "x", "value": 1.2346, "aim": "<= 2 ms", "met": True}
    assert content["aims"][1]["missing"] == "no such run"
    assert content["one of these aims"][0]["met"] is True
    outcome([MET]).write(tmp_path, 0.5)
    assert json.loads((tmp_path / "any.json").read_text())["met"] is None


def test_a_ratio_needs_both_figures_and_a_reference_that_is_not_zero() -> None:
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(0.0, 4.0) == 0.0
    assert ratio(None, 4.0) is None
    assert ratio(1.0, None) is None
    assert ratio(1.0, 0.0) is None


def test_each_kind_of_fault_is_a_separate_aim() -> None:
    clean = dict.fromkeys(FAULTS, 0)
    assert all(aim.met for aim in fault_aims({"job": clean}, "job"))
    for name in FAULTS:
        assert [aim.what for aim in fault_aims({"job": clean | {name: 1}}, "job") if not aim.met] == [f"{name}, job"]
    assert not any(aim.met for aim in fault_aims({}, "job"))
