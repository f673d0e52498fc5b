"""Helpers for the aims of all benchmarks: a figure that may be missing, a ratio, the faults of a delivery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.outcome import Aim

# Figures by case, as a result file has them.
Figures = Mapping[str, Mapping[str, Any]]

# The faults that `benchmarks.receiver.Received.faults` counts: everything that the contract forbids.
FAULTS = ("early", "inversions", "out_of_order", "lost", "duplicates", "altered")

# The lateness that a subscriber may expect at the default settings.
P99_MS, P50_MS = 1000.0, 500.0


def figure(figures: Figures, case: str, name: str) -> float | None:
    """Return one figure; None if it was not measured."""
    value = figures.get(case, {}).get(name)
    return None if value is None else float(value)


def ratio(value: float | None, of: float | None) -> float | None:
    """Return value / of; None if either is missing, or if `of` is 0."""
    return None if value is None or not of else value / of


def fault_aims(figures: Figures, case: str, prefix: str = "", names: Iterable[str] = FAULTS) -> list[Aim]:
    """Return an aim of 0 for each fault of `case`. `prefix` is the prefix of the figures' names."""
    of = f"{prefix.strip('_').replace('_', '-')}, " if prefix else ""
    return [Aim(f"{name}, {of}{case}", figure(figures, case, prefix + name), 0) for name in names]


def delivery_aims(figures: Figures, case: str) -> list[Aim]:
    """Return the aims for a delivered load: a low median and a low 99th percentile of lateness, and no fault."""
    return [
        Aim(f"p99, {case}", figure(figures, case, "p99_ms"), P99_MS, "ms"),
        Aim(f"p50, {case}", figure(figures, case, "p50_ms"), P50_MS, "ms"),
        *fault_aims(figures, case),
    ]
