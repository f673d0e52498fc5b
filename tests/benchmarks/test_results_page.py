"""The page of results has a row for each aim, and matches the result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.aims import Figures, held_aim
from benchmarks.outcome import Aim, Outcome
from benchmarks.results_page import PAGE, RESULTS, page


def test_the_page_matches_the_result_files() -> None:
    assert (RESULTS / PAGE).read_text() == page(), "run `make docs`"


def rows_of(
    folder: Path, aims: list[Aim], figures: dict[str, dict[str, Any]] | None = None, scale: float = 1.0
) -> list[str]:
    disturbed = Outcome("burst", "a load", aims, figures or {}).disturbed
    result = {
        "benchmark": "burst",
        "about": "a load",
        "aims": [aim.as_json() for aim in aims],
        "disturbed": disturbed,
        "date": "2026-11-28T00:46:13+00:00",
        "command": "python -m benchmarks burst --out /tmp/res",
        "scale": scale,
        "machine": {"commit": "de2e9c7727adbdbf"},
    }
    (folder / "burst.json").write_text(json.dumps(result))
    return [line for line in page(folder).splitlines() if line.startswith("| burst")]


def test_each_aim_has_a_row_with_its_figure(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, [Aim("p99", 26.0, 40, "ms"), Aim("rate", 1_000, 50_000, at_least=True), Aim("size", None, 1)]
    )
    assert rows[:3] == [
        "| burst | p99 | 26 | <= 40 ms | yes |",
        "| burst | rate | 1,000 | >= 50000 | **no** |",
        "| burst | size | not measured | <= 1 | **no** |",
    ]
    assert rows[3] == "| burst | a load | `python -m benchmarks burst` | 100% | 2026-11-28 | de2e9c77 |"


def test_a_trial_has_no_verdict(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [Aim("p99", 26.0, 40, "ms")], scale=0.5)
    assert rows[0] == "| burst | p99 | 26 | <= 40 ms |  |"


def test_aims_that_protect_others_share_a_row_if_they_are_met(tmp_path: Path) -> None:
    figures: Figures = {"case": {"held_to_order": 0.9}}
    rows = rows_of(tmp_path, [Aim("lost", 0, 0), Aim("early", 2, 0), held_aim(figures, "case")])
    assert rows[:2] == [
        "| burst | early | 2 | <= 0 | **no** |",
        "| burst | aims that protect the others | 2 | all | yes |",
    ]


def test_a_disturbed_result_says_so(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [Aim("p99", 26.0, 40, "ms")], {"a minute": {"cpu_elsewhere": 0.5}})
    assert rows[1] == "| burst | disturbed: a minute, cpu_elsewhere |  |  | **no** |"
