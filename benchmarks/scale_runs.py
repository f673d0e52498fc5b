"""The runs of `scale` that lie in its result file, one for each number of messages, and the aims that hold of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.outcome import Aim, Outcome

NAME = "scale"
_LARGEST_MB = 4096.0
# Two runs of one code on one machine may differ in these.
_IGNORED = {"commit", "uncommitted_changes"}

Figures = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One number of messages: figures with none and with all of them waiting, and the memory over what was held.

    `series` has columns as `scale_phases.COLUMNS` names them; `provenance` is `benchmarks.outcome.provenance`.
    """

    messages: int
    none: Figures
    waiting: Figures
    series: list[list[float]]
    provenance: dict[str, Any]

    @property
    def failed(self) -> list[str]:
        """The phases that could not be measured."""
        return [name for figures in (self.none, self.waiting) for name in figures if name.startswith("failed_")]

    def unlike(self, other: Run) -> str:
        """Return in what the two runs differ so that they cannot be compared; nothing if they can be."""
        mine, theirs = ({"scale": run.provenance["scale"], **run.provenance["machine"]} for run in (self, other))
        names = sorted(mine.keys() | theirs.keys())
        return ", ".join(name for name in names if name not in _IGNORED and mine.get(name) != theirs.get(name))


def outcome_of(runs: list[Run], compare_any: bool) -> Outcome:
    """Put the runs into one result. `compare_any` compares also what was measured of other code or elsewhere."""
    runs = sorted(runs, key=lambda run: run.messages)
    figures: dict[str, Figures] = {}
    for run in runs:
        figures |= {_none_case(run.messages): run.none, _case(run.messages): run.waiting}
    aims, missing = _aims({run.messages: run for run in runs}, compare_any)
    return Outcome(
        NAME,
        "messages of 100 bytes that wait, due in 48 h",
        aims,
        figures,
        {_case(run.messages): run.series for run in runs},
        missing=missing,
        runs={_case(run.messages): {"messages": run.messages, **run.provenance} for run in runs},
    )


def read_runs(file: Path) -> list[Run]:
    """Return the runs of an earlier result; none if there is no such file."""
    if not file.exists():
        return []
    content = json.loads(file.read_text())
    runs = []
    for case, provenance in content["runs"].items():
        messages = provenance.pop("messages")
        figures = content["figures"]
        runs.append(Run(messages, figures[_none_case(messages)], figures[case], content["series"][case], provenance))
    return runs


def _case(messages: int) -> str:
    return f"{messages:,} waiting"


def _none_case(messages: int) -> str:
    return f"none waiting, before {messages:,}"


def _aims(runs: dict[int, Run], compare_any: bool) -> tuple[list[Aim], list[str]]:
    """Hold the largest run against its own aims, and against those with a tenth and a hundredth of its messages."""
    top = runs[max(runs)]
    count = top.messages
    aims: list[Aim] = []
    missing: list[str] = []

    def add(what: str, value: Callable[[], float], target: float, unit: str = "", at_least: bool = False) -> None:
        try:
            aims.append(Aim(what, value(), target, unit, at_least))
        except KeyError as name:
            missing.append(f"{what}: {name.args[0]} was not measured")

    def compare(what: str, figure: str, share: int, target: float) -> None:
        other = runs.get(count // share)
        what = f"{what} at {count:,}, of that at {count // share:,}"
        if other is None:
            missing.append(f"{what}: there is no such run")
        elif (unlike := top.unlike(other)) and not compare_any:
            missing.append(f"{what}: the runs differ in {unlike}; --compare-any compares them")
        else:
            what += f" (the runs differ in {unlike})" if unlike else ""
            add(what, lambda: top.waiting[figure] / other.waiting[figure], target)

    compare("peak RSS", "rss_mb_job_peak", 10, 1.2)
    compare("steady RSS", "rss_mb_job_steady", 10, 1.2)
    add(f"peak RSS of the job's tree at {count:,}", lambda: top.waiting["rss_mb_job_peak"], _LARGEST_MB, "MB")
    add(f"restart at {count:,}", lambda: top.waiting["restart_s"], 60, "s")
    compare("restart", "restart_s", 100, 1.3)
    add(
        f"lateness p99 with {count:,} waiting, of that with none",
        lambda: top.waiting["lateness_p99_ms"] / top.none["lateness_p99_ms"],
        1.3,
    )
    add(
        f"messages/s of the last tenth of {count:,}, of the first's",
        lambda: top.waiting["last_tenth_per_s"] / top.waiting["first_tenth_per_s"],
        0.9,
        at_least=True,
    )
    return aims, missing
