"""A case of a benchmark's aims: good figures, and breaches, which are worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.aims import FAULTS, Figures
from benchmarks.outcome import Aim

CLEAN: dict[str, float] = dict.fromkeys(FAULTS, 0)
# (case, figure), and a value that breaks an aim.
Breach = tuple[str, str, float]


@dataclass(frozen=True)
class Case:
    """A benchmark's aims, figures that meet them all, and for each aim a figure with a value that breaks it."""

    aims_of: Callable[[Figures], list[Aim]]
    good: dict[str, dict[str, float]]
    breaches: dict[str, Breach]


def faults(case: str, names: tuple[str, ...] = FAULTS) -> dict[str, Breach]:
    """Return a breach of each aim about faults in a case."""
    return {f"{name}, {case}": (case, name, 1) for name in names}


def ordered_faults(case: str) -> dict[str, Breach]:
    """Return those, and a breach of the aim about the share of messages that are held to their order."""
    return {f"share held to their order, {case}": (case, "held_to_order", 0.49), **faults(case)}


ORDERED: dict[str, float] = {"held_to_order": 0.5, **CLEAN}
PUNCTUAL: dict[str, float] = {"p50_ms": 15.0, "p99_ms": 40.0, "p99_9_ms": 80.0, **ORDERED}
