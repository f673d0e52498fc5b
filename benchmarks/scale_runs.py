"""The runs of `scale` in its result file, one for each number of messages, and their aims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.aims import fault_aims, held_aim, ratio
from benchmarks.outcome import Aim, Outcome

NAME = "scale"
# The spread that the others are compared with.
CLOSE = "10m"
_LARGEST_MB = 4096.0
# With the wait for the next batch. A batch stages messages for twice as long (`clock.horizon`).
_BATCH_S = 30.0

CaseFigures = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """The run for one number of messages: figures with `none` and with all of them `waiting`, and a series.

    The columns of `series` are `scale_phases.COLUMNS`. `provenance` is `benchmarks.provenance.provenance`.
    """

    messages: int
    none: CaseFigures
    waiting: CaseFigures
    series: list[list[float]]
    provenance: dict[str, Any]

    @property
    def failed(self) -> list[str]:
        """The phases that could not be measured."""
        return [name for figures in (self.none, self.waiting) for name in figures if name.startswith("failed_")]

    def unlike(self, other: Run) -> str:
        """Return the differences that make the two runs incomparable; empty if they can be compared."""
        mine, theirs = ({"scale": run.provenance["scale"], **run.provenance["machine"]} for run in (self, other))
        if mine["uncommitted_changes"] or theirs["uncommitted_changes"]:
            return "uncommitted_changes"
        return ", ".join(name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name))


def result_name(spread: str) -> str:
    """Return the name of the result of a spread's runs."""
    return NAME if spread == CLOSE else f"{NAME}-{spread}"


def outcome_of(runs: list[Run], spread: str = CLOSE, close: Sequence[Run] = ()) -> Outcome:
    """Combine the runs of a spread into one result; runs of the same commit and machine are compared.

    `close` has the runs with messages that are due within ten minutes.
    """
    runs = sorted(runs, key=lambda run: run.messages)
    figures: dict[str, CaseFigures] = {}
    for run in runs:
        figures |= {_none_case(run.messages): run.none, _case(run.messages): run.waiting}
    return Outcome(
        result_name(spread),
        f"messages of 100 bytes that wait, due in 48 h or more, spread: {spread}",
        aims_of(runs) if spread == CLOSE else [*aims_of(runs), *_spread_aims(runs, close)],
        figures,
        {_case(run.messages): run.series for run in runs},
        runs={_case(run.messages): {"messages": run.messages, **run.provenance} for run in runs},
    )


def read_runs(file: Path) -> list[Run]:
    """Return the runs of an earlier result; an empty list if the file does not exist."""
    if not file.exists():
        return []
    content = json.loads(file.read_text())
    runs = []
    for case, provenance in content["runs"].items():
        messages = provenance.pop("messages")
        figures = content["figures"]
        runs.append(Run(messages, figures[_none_case(messages)], figures[case], content["series"][case], provenance))
    return runs


def aims_of(runs: list[Run]) -> list[Aim]:
    """Return the aims of the largest run, alone and compared with runs of a tenth and a hundredth of its messages."""
    by_messages = {run.messages: run for run in runs}
    top = by_messages[max(by_messages)]
    count, own = top.messages, top.waiting
    to_none = ratio(own.get("lateness_p99_ms"), top.none.get("lateness_p99_ms"))
    tenths = ratio(own.get("last_tenth_per_s"), own.get("first_tenth_per_s"))
    return [
        _compared(by_messages, "peak RSS", "rss_mb_job_peak", 10, 1.2),
        _compared(by_messages, "steady RSS", "rss_mb_job_steady", 10, 1.2),
        Aim(f"peak RSS of the job's tree at {count:,}", own.get("rss_mb_job_peak"), _LARGEST_MB, "MB"),
        Aim(f"restart at {count:,}", own.get("restart_s"), 60, "s"),
        _compared(by_messages, "restart", "restart_s", 100, 1.3),
        Aim(f"longest batch after a restart with a request at {count:,}", own.get("asked_batch_s"), _BATCH_S, "s"),
        Aim(f"lateness p99 with {count:,} waiting, of that with none", to_none, 1.3),
        Aim(f"metadata in memory at {count:,}", own.get("metadata_bytes_per_message"), 0.05, "bytes a message"),
        Aim(f"messages/s of the last tenth of {count:,}, of the first's", tenths, 0.9, at_least=True),
        *(aim for run in runs for aim in _fault_aims(run)),
    ]


def _spread_aims(runs: Sequence[Run], close: Sequence[Run]) -> list[Aim]:
    """Return the aims of the largest run against the run of the same number of messages, due within ten minutes."""
    top = max(runs, key=lambda run: run.messages)
    other = next((run for run in close if run.messages == top.messages), None)
    unlike = "there is no such run" if other is None else top.unlike(other)

    def of_close(what: str, name: str, target: float, at_least: bool = False) -> Aim:
        what = f"{what} at {top.messages:,}, of that within ten minutes"
        if other is None or unlike:
            return Aim(what, None, target, missing=f"not compared: {unlike}", at_least=at_least)
        return Aim(what, ratio(top.waiting.get(name), other.waiting.get(name)), target, at_least=at_least)

    return [
        of_close("ingest", "messages_per_s", 0.8, at_least=True),
        of_close("stored bytes a message", "disk_live_bytes_per_message", 1.2),
    ]


def _compared(runs: dict[int, Run], what: str, name: str, share: int, target: float) -> Aim:
    """Return the aim for a figure of the largest run, as a ratio to the run with 1/`share` of its messages."""
    top = runs[max(runs)]
    other = runs.get(top.messages // share)
    what = f"{what} at {top.messages:,}, of that at {top.messages // share:,}"
    if other is None:
        return Aim(what, None, target, missing="there is no such run")
    if unlike := top.unlike(other):
        return Aim(what, None, target, missing=f"not compared: the runs differ in {unlike}")
    return Aim(what, ratio(top.waiting.get(name), other.waiting.get(name)), target)


def _fault_aims(run: Run) -> list[Aim]:
    """Return the aims for the deliveries of a run: no fault in warm-up and lateness, most held to order."""
    none, waiting = _none_case(run.messages), _case(run.messages)
    figures = {none: run.none, waiting: run.waiting}
    return [
        *fault_aims(figures, none, "warm_up_"),
        *(aim for case in (none, waiting) for aim in fault_aims(figures, case, "lateness_")),
        *(held_aim(figures, case, "lateness_") for case in (none, waiting)),
    ]


def _case(messages: int) -> str:
    return f"{messages:,} waiting"


def _none_case(messages: int) -> str:
    return f"none waiting, before {messages:,}"
