"""The aims of `scale`: for the largest run alone, and against runs of the same code on the same machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.aims import FAULTS
from benchmarks.outcome import Aim
from benchmarks.scale_runs import Run, aims_of, outcome_of, read_runs

SMALL, MIDDLE, LARGE = 1_000_000, 10_000_000, 100_000_000
MACHINE = {"commit": "c0ffee", "uncommitted_changes": False, "code": "abc", "cpus": 2}
OWN = {
    "peak RSS of the job's tree at 100,000,000": ("rss_mb_job_peak", 4096.1),
    "restart at 100,000,000": ("restart_s", 60.1),
    "longest batch after a restart with a request at 100,000,000": ("asked_batch_s", 30.1),
    "lateness p99 with 100,000,000 waiting, of that with none": ("lateness_p99_ms", 131.0),
    "metadata in memory at 100,000,000": ("metadata_bytes_per_message", 0.06),
    "messages/s of the last tenth of 100,000,000, of the first's": ("last_tenth_per_s", 89),
}
COMPARED = {
    "peak RSS at 100,000,000, of that at 10,000,000": (MIDDLE, "rss_mb_job_peak", 1000.0),
    "steady RSS at 100,000,000, of that at 10,000,000": (MIDDLE, "rss_mb_job_steady", 1000.0),
    "restart at 100,000,000, of that at 1,000,000": (SMALL, "restart_s", 10.0),
}


def run_of(messages: int, **machine: Any) -> Run:
    clean = {"lateness_held_to_order": 0.5, **{f"lateness_{name}": 0 for name in FAULTS}}
    return Run(
        messages,
        {"lateness_p99_ms": 100.0, **clean, **{f"warm_up_{name}": 0 for name in FAULTS}},
        {"lateness_p99_ms": 130.0, "rss_mb_job_peak": 3000.0, "rss_mb_job_steady": 2000.0, "restart_s": 30.0}
        | {"first_tenth_per_s": 100, "last_tenth_per_s": 90, "metadata_bytes_per_message": 0.05}
        | {"asked_batch_s": 30.0}
        | {"messages_per_s": 1000, "disk_live_bytes_per_message": 100.0}
        | clean,
        [[0.0]],
        {"scale": 1.0, "date": f"day {messages}", "machine": MACHINE | machine},
    )


def runs(**machine_of_large: Any) -> list[Run]:
    return [run_of(SMALL), run_of(MIDDLE), run_of(LARGE, **machine_of_large)]


def not_met(some_runs: list[Run]) -> dict[str, Aim]:
    return {aim.what: aim for aim in aims_of(some_runs) if not aim.met}


def test_good_runs_meet_every_aim() -> None:
    assert not_met(runs()) == {}
    assert outcome_of(runs()).met


@pytest.mark.parametrize("what", OWN)
def test_a_bad_or_missing_figure_of_the_largest_run_breaks_its_aim(what: str) -> None:
    name, bad = OWN[what]
    some_runs = runs()
    some_runs[-1].waiting[name] = bad
    assert not_met(some_runs)[what].value is not None
    del some_runs[-1].waiting[name]
    assert not_met(some_runs)[what].value is None


@pytest.mark.parametrize("what", COMPARED)
def test_a_figure_that_grew_too_much_or_has_no_reference_breaks_its_aim(what: str) -> None:
    messages, name, small = COMPARED[what]
    some_runs = runs()
    reference = next(run for run in some_runs if run.messages == messages)
    reference.waiting[name] = small
    assert not_met(some_runs)[what].value is not None
    del reference.waiting[name]
    assert not_met(some_runs)[what].value is None
    without = not_met([run for run in runs() if run.messages != messages])
    assert without[what].value is None
    assert without[what].missing == "there is no such run"


@pytest.mark.parametrize(
    ("difference", "named"),
    [
        ({"commit": "decaf"}, "commit"),
        ({"code": "xyz", "cpus": 4}, "code, cpus"),
        ({"uncommitted_changes": True}, "uncommitted_changes"),
    ],
)
def test_runs_of_other_code_or_machines_are_not_compared(difference: dict[str, Any], named: str) -> None:
    broken = not_met(runs(**difference))
    assert broken.keys() == COMPARED.keys()
    assert {aim.missing for aim in broken.values()} == {f"not compared: the runs differ in {named}"}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("prefix", ["warm_up_", "lateness_"])
@pytest.mark.parametrize("messages", [SMALL, LARGE])
def test_a_fault_in_any_run_with_none_waiting_breaks_an_aim(messages: int, prefix: str, name: str) -> None:
    some_runs = runs()
    figures = next(run for run in some_runs if run.messages == messages).none
    figures[prefix + name] = 1
    assert [aim.value for aim in not_met(some_runs).values()] == [1]
    del figures[prefix + name]
    assert [aim.value for aim in not_met(some_runs).values()] == [None]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_while_all_wait_breaks_an_aim(name: str) -> None:
    some_runs = runs()
    some_runs[0].waiting[f"lateness_{name}"] = 1
    assert [aim.value for aim in not_met(some_runs).values()] == [1]


@pytest.mark.parametrize("case", ["none", "waiting"])
def test_too_few_messages_held_to_their_order_break_an_aim(case: str) -> None:
    some_runs = runs()
    getattr(some_runs[0], case)["lateness_held_to_order"] = 0.49
    assert [aim.value for aim in not_met(some_runs).values()] == [0.49]


def test_a_spread_is_compared_with_the_run_within_ten_minutes() -> None:
    spread, close = runs(), runs()
    assert outcome_of(spread, "366d", close).met
    spread[-1].waiting.update({"messages_per_s": 790, "disk_live_bytes_per_message": 121.0})
    missed = [aim.what.partition(" at")[0] for aim in outcome_of(spread, "366d", close).aims if not aim.met]
    assert missed == ["ingest", "stored bytes a message"]
    alone = [aim.missing for aim in outcome_of(spread, "366d", close[:-1]).aims if not aim.met]
    assert alone == ["not compared: there is no such run"] * 2


def test_with_a_disturbed_run_the_outcome_is_not_met() -> None:
    some_runs = runs()
    some_runs[1].none["idle_cpu_elsewhere"] = 1.0
    assert not outcome_of(some_runs).met


@pytest.mark.usefixtures("java")
def test_runs_are_read_back_from_the_result_file(tmp_path: Path) -> None:
    outcome_of(runs()).write(tmp_path, 1.0)
    assert read_runs(tmp_path / "scale.json") == runs()
    assert read_runs(tmp_path / "none.json") == []
