"""The pages of docs/reference match the code, and a page that does not is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import module_of

GENERATOR = Path(__file__).parent.parent.parent / "docs/generate.py"


@pytest.fixture(scope="module")
def generator() -> Any:
    """The script docs/generate.py, as a module."""
    return module_of(GENERATOR)


def test_the_reference_pages_match_the_code(generator: Any) -> None:
    assert generator.wrong(generator.REFERENCE) == [], "run `make docs`"


def test_a_page_that_is_stale_missing_or_left_over_is_named(generator: Any, tmp_path: Path) -> None:
    generator.write(tmp_path)
    assert generator.wrong(tmp_path) == []
    settings, errors = tmp_path / "settings.md", tmp_path / "errors.md"
    settings.write_text(settings.read_text().replace("`bucket.shards`", "`bucket.sharts`"))
    errors.unlink()
    (tmp_path / "rules.md").write_text("# Rules\n")
    assert generator.wrong(tmp_path) == ["errors.md", "rules.md", "settings.md"]


def test_the_pages_of_a_checkout_come_from_its_own_code(tmp_path: Path) -> None:
    # As a second worktree of git: the Python environment has another one installed.
    for folder in ("conf", "sources", "state", "sinks", "streaming", "docs"):
        shutil.copytree(GENERATOR.parent.parent / folder, tmp_path / folder)
    command = tmp_path / "streaming/cli/broker.py"
    command.write_text(command.read_text().replace("Downloads about 60 MB", "Downloads about 61 MB"))
    subprocess.run([sys.executable, tmp_path / "docs/generate.py"], cwd="/", env={}, check=True)
    assert "Downloads about 61 MB" in (tmp_path / "docs/reference/commands.md").read_text()


def test_an_error_without_a_remedy_and_a_remedy_without_an_error_are_refused(generator: Any) -> None:
    with pytest.raises(SystemExit, match=r"\[errors\] lacks clock-behind"):
        generator._check_remedies(["clock-behind"], {}, "errors")
    with pytest.raises(SystemExit, match=r"\[errors\] has clock-ahead"):
        generator._check_remedies(["clock-behind"], {"clock-behind": "", "clock-ahead": ""}, "errors")
