"""The outcome of a benchmark: figures, aims and whether they are met, written as JSON and shown as a table."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.provenance import provenance

# If other processes take more cores than this on average, in any measured window, a result counts as disturbed.
DISTURBED_CORES = 0.25
_ELSEWHERE = "cpu_elsewhere"


@dataclass(frozen=True)
class Aim:
    """A figure with a target, in `unit`. The aim is met at or below the target, or with `at_least` at or above it.

    If the figure was not measured, `value` is None, the aim is not met, and `missing` has the reason.
    """

    what: str
    value: float | None
    target: float
    unit: str = ""
    at_least: bool = False
    missing: str = ""

    @property
    def measured(self) -> float | None:
        """The value as a plain number; None if it is missing or NaN."""
        return None if self.value is None or math.isnan(self.value) else float(self.value)

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        value = self.measured
        if value is None:
            return False
        return value >= self.target if self.at_least else value <= self.target

    def as_json(self) -> dict[str, Any]:
        """Return the aim in the form of a result file."""
        relation = ">=" if self.at_least else "<="
        value = self.measured
        return {
            "what": self.what,
            "value": None if value is None else round(value, 4),
            "aim": f"{relation} {self.target:g} {self.unit}".strip(),
            "met": self.met,
            **({"missing": self.missing or "not measured"} if value is None else {}),
        }


@dataclass(frozen=True)
class Outcome:
    """A benchmark's result: met if all `aims` are met, and one of the `alternatives` if there are any.

    A result without aims, or disturbed by other processes, is not met.

    - `figures`: all measured values, by case.
    - `series`: the data of the plot.
    - `runs`: the `provenance` of each run, if the cases were measured in separate runs.
    """

    name: str
    about: str
    aims: list[Aim]
    figures: dict[str, dict[str, Any]]
    series: dict[str, list[list[float]]] = field(default_factory=dict)
    alternatives: list[Aim] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether the benchmark's aim is met."""
        required = bool(self.aims) and all(aim.met for aim in self.aims)
        alternative = not self.alternatives or any(aim.met for aim in self.alternatives)
        return required and alternative and not self.disturbed

    @property
    def disturbed(self) -> dict[str, float]:
        """The cores that other processes took, by `<case>, <figure>`; only values above the limit."""
        return {
            f"{case}, {name}": cores
            for case, figures in self.figures.items()
            for name, cores in figures.items()
            if name.endswith(_ELSEWHERE) and cores > DISTURBED_CORES
        }

    def write(self, folder: Path, scale: float) -> None:
        """Write `<folder>/<name>.json`. A trial, at a scale below 1, has no verdict: `met` is null."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": self.name,
            "about": self.about,
            "met": self.met if scale >= 1 else None,
            "aims": [aim.as_json() for aim in self.aims],
            **({"one of these aims": [aim.as_json() for aim in self.alternatives]} if self.alternatives else {}),
            **({"disturbed": self.disturbed} if self.disturbed else {}),
            "figures": self.figures,
            **({"runs": self.runs} if self.runs else {}),
            **provenance(scale),
        }
        # The series are on one line, so that the figures stay readable.
        text = json.dumps(content, indent=1).removesuffix("\n}")
        (folder / f"{self.name}.json").write_text(f'{text},\n "series": {json.dumps(self.series)}\n}}\n')

    def show(self) -> None:
        """Print the aims, then the figures."""
        console = Console()
        table = Table("aim", "value", "target", "met", title=f"{self.name}: {self.about}", title_justify="left")
        for aim in [*self.aims, *self.alternatives]:
            row = aim.as_json()
            value = row["missing"] if row["value"] is None else f"{row['value']:,g}"
            one_of = " (one is enough)" if aim in self.alternatives else ""
            table.add_row(row["what"] + one_of, value, row["aim"], "yes" if row["met"] else "NO")
        for window, cores in self.disturbed.items():
            table.add_row(f"disturbed: {window}", f"{cores:g}", f"<= {DISTURBED_CORES:g}", "NO")
        console.print(table)
        figures = Table("figure", *self.figures)
        for name in dict.fromkeys(name for case in self.figures.values() for name in case):
            figures.add_row(name, *(_text(case.get(name)) for case in self.figures.values()))
        console.print(figures)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.10g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
