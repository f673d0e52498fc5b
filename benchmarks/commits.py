"""Commits: how long a seal takes over a week of commits, while the table's log is cleaned as maintenance does it.

The week passes in minutes: commits between the measured seals are written as files, as the service would have made
them, and all files of the log are made older. For comparison, a log of which 48 hours are kept, as Delta keeps it by
itself.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any

import numpy as np

from benchmarks.aims import Figures, figure, ratio
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.sealed_table import SealedTable, sealed_table
from benchmarks.waiting import say

COMMITS, WEEK_S = 200_000, 7 * 86_400.0
CLEANED, KEPT = "log cleaned by maintenance", "48 hours of log kept"
# Delta writes a checkpoint of the log with each of so many commits; every point has one.
_EVERY = 50
_SEALS = _EVERY
_POINTS = 5
_STEP = 1_000
_KEPT_SHARE = 2 / 7
_LIVE = 50
# The table keeps removed files for an hour, and so do the checkpoints of its log. An hour of the week has 1,190
# commits, which are written here in about ten seconds; unlike files, removals could not be made older afterwards.
_REMOVED_BEFORE_MS = 3_600_000 - 10_000
OF_FIRST = 1.2


def measure(scale: float) -> Outcome:
    """Measure seals at several points of the week, and of two days without cleaning."""
    commits = max(2 * _STEP, int(COMMITS * scale))
    figures: dict[str, dict[str, Any]] = {}
    series: dict[str, list[list[float]]] = {}
    for case, count in ((CLEANED, commits), (KEPT, int(commits * _KEPT_SHARE))):
        with sealed_table() as table:
            figures[case], series[case] = _case(_Log(table), case, count)
    about = f"seals over {commits:,} commits in a week, and over {int(commits * _KEPT_SHARE):,} in two days"
    return Outcome("commits", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aim: a seal takes as long after a week as at its beginning."""
    last, first = (figure(figures, CLEANED, name) for name in ("last_p50_ms", "first_p50_ms"))
    return [Aim("p50 of a seal after a week, of that at its beginning", ratio(last, first), OF_FIRST)]


def draw(outcome: Outcome) -> Any:
    """Draw the median duration of a seal over the commits before it."""
    drawn, axes = figure_of(outcome)
    for case, (commits, values) in outcome.series.items():
        axes.plot(commits, values, marker=".", label=case)
    axes.set(xlabel="commits", ylabel="p50 of a seal, ms", ylim=(0, None))
    axes.legend()
    return drawn


def _case(log: _Log, case: str, commits: int) -> tuple[dict[str, Any], list[list[float]]]:
    # The first seals warm the session up.
    log.seals(_SEALS)
    every = max(1, commits // _STEP // _POINTS)
    at, medians, longest, files = [0.0], [], [], []

    def take() -> None:
        ms = log.seals(_SEALS)
        medians.append(float(np.median(ms)))
        longest.append(max(ms))
        files.append(log.files)

    take()
    for number in range(1, commits // _STEP + 1):
        log.pass_by(_STEP, _STEP * WEEK_S / COMMITS)
        if case == CLEANED:
            log.store.clean_log()
        if number % every == 0:
            at.append(float(number * _STEP))
            take()
            say(f"{case}, {number * _STEP:,} commits: p50 of a seal {medians[-1]:.0f} ms, {files[-1]:,} files")
    figures = {
        "commits": commits,
        "first_p50_ms": round(medians[0], 1),
        "last_p50_ms": round(medians[-1], 1),
        "first_longest_ms": round(longest[0], 1),
        "last_longest_ms": round(longest[-1], 1),
        "most_log_files": max(files),
    }
    return figures, [at, [round(value, 1) for value in medians]]


class _Log:
    """A table of sealed buckets, and the log to which commits are written as files."""

    def __init__(self, table: SealedTable) -> None:
        self.store = table.store
        self._folder = table.folder / "_delta_log"
        self._rows, _ = table.rows(1, np.arange(20_000) * 1000)
        self._sealed = 0
        self._added: list[dict[str, Any]] = []

    @property
    def files(self) -> int:
        """How many files are in the log's folder."""
        return len(list(self._folder.iterdir()))

    def seals(self, count: int) -> list[float]:
        """Seal a bucket `count` times, and return how long each took, in ms."""
        taken = []
        for _ in range(count):
            self._sealed += 1
            begun = time.perf_counter()
            self.store.append(self._rows, "benchmark", self._sealed)
            taken.append((time.perf_counter() - begun) * 1000)
        return taken

    def pass_by(self, commits: int, seconds: float) -> None:
        """Write commits that add and remove files, let Delta read them, and make all files older by `seconds`."""
        now_ms = time.time_ns() // 1_000_000
        first = self.store.newest_version() + 1
        template = self._template(first - 1)
        # Up to the commit before one with a checkpoint of the log.
        last = first + commits - 1 + (_EVERY - 1 - (first + commits - 1)) % _EVERY
        for version in range(first, last + 1):
            actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": now_ms, "operation": "WRITE"}}]
            for kind in ("chunks", "metadata"):
                part = f"{kind}-{version:012d}"
                path = f"part={part}/part-00000-{uuid.uuid4()}.c000.snappy.parquet"
                add = template | {"path": path, "partitionValues": {"part": part}}
                actions.append({"add": add})
                self._added.append(add)
            while len(self._added) > 2 * _LIVE:
                old = self._added.pop(0)
                removed = {name: old[name] for name in ("path", "partitionValues", "size", "dataChange")}
                actions.append(
                    {
                        "remove": removed
                        | {"deletionTimestamp": now_ms - _REMOVED_BEFORE_MS, "extendedFileMetadata": True}
                    }
                )
            text = "".join(json.dumps(action) + "\n" for action in actions)
            (self._folder / f"{version:020d}.json").write_text(text)
        # Delta reads them, and writes a checkpoint of the log with this one.
        self.seals(1)
        for file in self._folder.iterdir():
            if file.is_file():
                aged = file.stat().st_mtime - seconds
                os.utime(file, (aged, aged))

    def _template(self, version: int) -> dict[str, Any]:
        lines = (self._folder / f"{version:020d}.json").read_text().splitlines()
        return next(action["add"] for action in map(json.loads, lines) if "add" in action)
