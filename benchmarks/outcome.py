"""What a benchmark found: figures, aims and whether they are met, written as JSON and shown as a table."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from conf.java.jars import broker_jars, java_command, java_version

_ROOT = Path(__file__).parent.parent
_ROOMS = ("conf", "sources", "state", "sinks", "streaming")
_PACKAGES = ("pyspark", "delta-spark", "pyarrow", "pandas", "confluent-kafka")


@dataclass(frozen=True)
class Aim:
    """One figure with a target, in `unit`; met at or below it, or at or above it."""

    what: str
    value: float
    target: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        # A value of numpy's compares to a bool of numpy's, which JSON does not know.
        return bool(self.value >= self.target if self.at_least else self.value <= self.target)

    def as_json(self) -> dict[str, Any]:
        """The aim as it stands in a result file."""
        relation = ">=" if self.at_least else "<="
        aim = f"{relation} {self.target:g} {self.unit}".strip()
        return {"what": self.what, "value": round(self.value, 4), "aim": aim, "met": self.met}


@dataclass(frozen=True)
class Outcome:
    """A benchmark's result. With `one_is_enough`, one met aim meets the whole; otherwise all must be.

    `figures` are what else was measured, by case; `series` is what the plot shows. `missing` are the aims that could
    not be computed, each with why. Where cases were measured apart, `runs` has the `provenance` of each run.
    """

    name: str
    about: str
    aims: list[Aim]
    figures: dict[str, dict[str, Any]]
    series: dict[str, list[list[float]]] = field(default_factory=dict)
    one_is_enough: bool = False
    missing: list[str] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether the benchmark's aim is met."""
        verdicts = [aim.met for aim in self.aims]
        return any(verdicts) if self.one_is_enough else all(verdicts) and not self.missing

    def write(self, folder: Path, scale: float) -> None:
        """Write `<folder>/<name>.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": self.name,
            "about": self.about,
            "met": self.met,
            "aims_needed": "any" if self.one_is_enough else "all",
            "aims": [aim.as_json() for aim in self.aims],
            **({"aims_missing": self.missing} if self.missing else {}),
            "figures": self.figures,
            **({"runs": self.runs} if self.runs else {}),
            **provenance(scale),
        }
        # The series on one line: a reader wants the figures.
        text = json.dumps(content, indent=1).removesuffix("\n}")
        (folder / f"{self.name}.json").write_text(f'{text},\n "series": {json.dumps(self.series)}\n}}\n')

    def show(self) -> None:
        """Print the aims, then the figures."""
        console = Console()
        table = Table("aim", "value", "target", "met", title=f"{self.name}: {self.about}", title_justify="left")
        for aim in map(Aim.as_json, self.aims):
            table.add_row(aim["what"], f"{aim['value']:,g}", aim["aim"], "yes" if aim["met"] else "NO")
        for why in self.missing:
            table.add_row(why, "", "", "?")
        console.print(table)
        figures = Table("figure", *self.figures)
        for name in dict.fromkeys(name for case in self.figures.values() for name in case):
            figures.add_row(name, *(_text(case.get(name)) for case in self.figures.values()))
        console.print(figures)


def provenance(scale: float) -> dict[str, Any]:
    """Say when, by which command and on what a measurement was made."""
    started = sys.modules["__main__"].__spec__
    module = "benchmarks" if started is None else started.name.removesuffix(".__main__")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m", module, *sys.argv[1:]]),
        "scale": scale,
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on, and of which commit."""
    java = java_command()
    kafka = next((jar.stem for jar in broker_jars() if jar.name.startswith("kafka_")), "?")
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java_version(java),
        "broker": kafka,
        **{package: version(package) for package in _PACKAGES},
        "commit": _git(_ROOT, "rev-parse", "HEAD") or "?",
        "uncommitted_changes": bool(_git(_ROOT, "status", "--porcelain", "--", ".", ":!benchmarks/results")),
        "code": service_code(),
    }


def service_code() -> str:
    """Return a short hash of the service's files as they are now: the same in two commits that differ elsewhere."""
    files = (file for room in _ROOMS for file in (_ROOT / room).rglob("*") if "__pycache__" not in file.parts)
    whole = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file()):
        whole.update(str(file.relative_to(_ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return whole.hexdigest()[:12]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.10g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
