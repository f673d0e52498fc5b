"""The page of all results, made from their files.

`python -m benchmarks.results_page` writes `benchmarks/results/README.md`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = "README.md"
# Met aims of these two kinds only say that the other figures count.
_NO_FAULT, _HELD = "<= 0", "share held to their order"
_HEAD = """\
<!-- Written by `python -m benchmarks.results_page` from the files of this folder. -->
# Results of the benchmarks

[How they are run, and when an aim is met](../README.md). One row counts the aims that only protect the others: no
fault, and most messages held to their order.

| benchmark | figure | value | aim | met |
| --- | --- | --- | --- | --- |
"""
_RUNS = """
| benchmark | load | command | size | date | commit |
| --- | --- | --- | --- | --- | --- |
"""


def page(folder: Path = RESULTS) -> str:
    """Return the page: a row for each aim of each result file in `folder`, and a row for each file."""
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    rows = [row for result in results for row in _aims(result)]
    return _HEAD + "".join(rows) + _RUNS + "".join(map(_run, results))


def _aims(result: dict[str, Any]) -> list[str]:
    aims = [*result["aims"], *result.get("one of these aims", [])]
    protecting = [aim for aim in aims if aim["met"] and (aim["aim"] == _NO_FAULT or aim["what"].startswith(_HELD))]
    rows = [_row(result, aim) for aim in aims if aim not in protecting]
    disturbed = [f"disturbed: {window}" for window in result.get("disturbed", {})]
    rows += [_cells(result["benchmark"], window, "", "", "**no**") for window in disturbed]
    if protecting:
        rows.append(_cells(result["benchmark"], "aims that protect the others", str(len(protecting)), "all", "yes"))
    return rows


def _row(result: dict[str, Any], aim: dict[str, Any]) -> str:
    value = "not measured" if aim["value"] is None else f"{aim['value']:,g}"
    # A trial has no verdict (`benchmarks/README.md`).
    verdict = "" if result["scale"] < 1 else "yes" if aim["met"] else "**no**"
    return _cells(result["benchmark"], aim["what"], value, aim["aim"], verdict)


def _run(result: dict[str, Any]) -> str:
    commit = result["machine"]["commit"][:8]
    size = f"{result['scale']:.0%}"
    command = re.sub(r" --out \S+", "", result["command"])
    return _cells(result["benchmark"], result["about"], f"`{command}`", size, result["date"][:10], commit)


def _cells(*texts: str) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |\n"


def main() -> None:
    """Write the page."""
    (RESULTS / PAGE).write_text(page())


if __name__ == "__main__":
    main()
