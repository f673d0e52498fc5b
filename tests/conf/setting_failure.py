"""Loads wrong settings, and checks that the error shows no secret."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from conf.errors import SettingError
from conf.load import load_settings

SECRET = "hunter2"


def failure(*overrides: str, file: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """Load settings that are refused, and return the error, which shows no secret."""
    with pytest.raises(SettingError) as raised:
        load_settings(file, overrides, environ or {})
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)
