"""Parameters and examples of a test of which `make test` takes only some."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# `make test-all` sets this variable.
_IS_THOROUGH = os.environ.get("EXAMPLES") == "all"
# A quarter of the examples, but no fewer than these.
_SHARE, _LEAST = 4, 20


def examples(most: int) -> int:
    """Return how many examples of a test Hypothesis tries: `most` in `make test-all`, and fewer in `make test`."""
    return most if _IS_THOROUGH else min(most, max(_LEAST, most // _SHARE))


def some_thorough(values: Iterable[str], always: Collection[str]) -> list[Any]:
    """Return the parameters `values`. All except the values in `always` have the mark `thorough`."""
    return [pytest.param(value, marks=[] if value in always else [pytest.mark.thorough]) for value in values]
