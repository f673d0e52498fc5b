"""The check of commit messages: a short subject, an empty line, and a body that says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

_GOOD = "Stage one shard at a time\n\nTwo tasks fenced each other.\n"


def refused(message: str, folder: Path) -> str:
    """Return what the check prints about `message`, or nothing if it is good."""
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message)
    done = subprocess.run([ROOT / ".ci/commit-messages", file], check=False, capture_output=True, text=True)
    assert done.returncode == bool(done.stderr)
    return done.stderr


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("x" * 73 + "\n\nWhy.\n", "more than 72 characters"),
        ("Stage one shard.\n\nWhy.\n", "ends with a full stop"),
        ("Stage one shard\nWhy.\n\nMore.\n", "the second line is not empty"),
        ("Stage one shard\n", "no body"),
        ("Stage one shard\n\n# Please enter the message\n", "no body"),
    ],
)
def test_a_message_without_the_form_is_refused_by_name(message: str, problem: str, tmp_path: Path) -> None:
    assert problem in refused(message, tmp_path)


@pytest.mark.parametrize("message", [_GOOD, "x" * 72 + "\n\nWhy.\n", "fixup! Stage one shard\n", f"# a\n{_GOOD}"])
def test_other_messages_are_accepted(message: str, tmp_path: Path) -> None:
    assert refused(message, tmp_path) == ""
