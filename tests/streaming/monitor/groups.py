"""A fake of a process's knowledge of its group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace


def group(
    silent_s: float = 0, refusal: str | None = None, strangers: Mapping[str, list[int]] = MappingProxyType({})
) -> SimpleNamespace:
    """Return a fake of a process's knowledge of its group."""
    polled_s = time.monotonic() - silent_s
    return SimpleNamespace(polled_s=polled_s, refusals=SimpleNamespace(sentence=refusal), strangers=strangers)
