"""Parameters of a test of which `make test` takes only some."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_thorough(values: Iterable[str], always: Collection[str]) -> list[Any]:
    """Return the parameters `values`. All except the values in `always` have the mark `thorough`."""
    return [pytest.param(value, marks=[] if value in always else [pytest.mark.thorough]) for value in values]
