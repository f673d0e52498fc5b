"""The fixture of tests that load settings from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    """A function that writes a settings file, and returns its path."""

    def write(text: str) -> Path:
        file = tmp_path / "settings.toml"
        file.write_text(text)
        return file

    return write
