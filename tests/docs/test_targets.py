"""The targets of the Makefile run the tests that tests/README.md says."""

from __future__ import annotations

import re
import subprocess

import pytest
from _pytest.mark.expression import Expression

from tests.docs.documents import ROOT

_MARKS = {"java", "broker", "spark", "system", "thorough", "soak"}
# The command of a target, and the marks of the tests that it leaves out.
_ROW = re.compile(r"^\| `make ([a-z-]+)` \| [^|]+ \| ([^|]*) \|", re.MULTILINE)
_SELECTION = re.compile(r"""pytest.* -m (?:"([^"]+)"|(\w+))""")


def _rows() -> dict[str, set[str]]:
    left_out = {}
    for target, text in _ROW.findall((ROOT / "tests/README.md").read_text()):
        marks = set(re.findall(r"\w+", text.removeprefix("all marks but ")))
        if marks:
            left_out[target] = _MARKS - marks if text.startswith("all marks but ") else marks
    return left_out


@pytest.mark.parametrize("target", ["unit", "test", "test-all", "soak", "coverage"])
def test_a_target_leaves_out_the_tests_that_its_line_says(target: str) -> None:
    # `ARGS`, as in the environment of `make test ARGS=...`, would choose other tests.
    command = ["make", "--dry-run", "--always-make", target, "ARGS=", "MAKEFLAGS="]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    selections = [Expression.compile(quoted or word) for quoted, word in _SELECTION.findall(shown)]
    assert len(selections) == 1, shown

    def runs(marks: set[str]) -> bool:
        def has_mark(name: str, /, **_: object) -> bool:
            return name in marks

        return selections[0].evaluate(has_mark)

    assert {mark for mark in _MARKS if not runs({mark})} == _rows()[target]
    assert runs(set()) == (target != "soak")
