"""The pages of docs/reference are what the code says, and one that is not is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs/generate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_reference_pages_are_what_the_code_says() -> None:
    done = generate("--check")
    assert done.returncode == 0, done.stderr


def test_a_page_that_is_stale_missing_or_left_over_is_named(tmp_path: Path) -> None:
    assert generate(str(tmp_path)).returncode == 0
    assert generate("--check", str(tmp_path)).returncode == 0
    settings, errors = tmp_path / "settings.md", tmp_path / "errors.md"
    settings.write_text(settings.read_text().replace("`bucket.shards`", "`bucket.sharts`"))
    errors.unlink()
    (tmp_path / "rules.md").write_text("# Rules\n")
    done = generate("--check", str(tmp_path))
    assert done.returncode == 1
    assert "errors.md, rules.md, settings.md" in done.stderr
