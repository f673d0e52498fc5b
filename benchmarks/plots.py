"""Figures of one look, drawn without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.outcome import Outcome


def figure_of(outcome: Outcome) -> tuple[Any, Any]:
    """Return a figure with the benchmark's title, and its axes."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.set_title(f"{outcome.name}: {outcome.about}", fontsize=10)
    axes.grid(alpha=0.3)
    return figure, axes


def save(figure: Any, file: Path) -> None:
    """Write the figure as PNG, and let it go."""
    figure.savefig(file, dpi=120)
    plt.close(figure)
