"""Helpers for the aims of all benchmarks: a figure that may be missing, a ratio, the faults of a delivery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.outcome import Aim

# Figures by case, as a result file has them.
Figures = Mapping[str, Mapping[str, Any]]

# The faults that `benchmarks.receiver.Received.faults` counts: everything that the contract forbids.
FAULTS = ("early", "inversions", "out_of_order", "lost", "duplicates", "altered")

# The lateness (ms) that a subscriber may expect at the default settings, by percentile.
LATENESS_MS = {"p50": 15.0, "p99": 35.0, "p99.9": 60.0}
# The least share of messages that must be held to their order. Messages that were not staged in time are not.
LEAST_HELD = 0.5


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


def held_aim(figures: Figures, case: str, prefix: str = "") -> Aim:
    """Return the aim for the share of messages that were held to their order: faults among few would prove little.

    `prefix` is the prefix of the figure's name.
    """
    held = figure(figures, case, f"{prefix}held_to_order")
    return Aim(f"share held to their order, {case}", held, LEAST_HELD, at_least=True)


def lateness_aims(figures: Figures, case: str, limits_ms: Mapping[str, float]) -> list[Aim]:
    """Return an aim for each percentile of lateness in `limits_ms`."""
    return [
        Aim(f"{percentile}, {case}", figure(figures, case, percentile_name(percentile)), limit_ms, "ms")
        for percentile, limit_ms in limits_ms.items()
    ]


def percentile_name(percentile: str) -> str:
    """Return the name of the figure for a percentile such as `p99.9`."""
    return f"{percentile.replace('.', '_')}_ms"
