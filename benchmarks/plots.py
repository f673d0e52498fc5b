"""Plots in one common style, drawn without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.outcome import Outcome


def figure_of(outcome: Outcome) -> tuple[Any, Any]:
    """Return a figure with the benchmark's title, and its axes."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.set_title(f"{outcome.name}: {outcome.about}", fontsize=10)
    axes.grid(alpha=0.3)
    return figure, axes


def lateness_figure(outcome: Outcome, aim_ms: float, aim: str = "aim for p99") -> Any:
    """Draw the share of messages received within a lateness; each series is a `benchmarks.traffic.curve`.

    `aim` is the label of the line at `aim_ms`.
    """
    figure, axes = figure_of(outcome)
    for case, (percents, values) in outcome.series.items():
        axes.plot(np.maximum(values, 0.1), percents, label=case)
    axes.axvline(aim_ms, color="grey", linestyle=":", label=aim)
    axes.set(xscale="log", xlabel="received - deliver_at, ms", ylabel="% of messages within")
    axes.legend()
    return figure


def progress_figure(outcome: Outcome) -> Any:
    """Draw the number of ingested messages over the seconds since the first batch was planned."""
    figure, axes = figure_of(outcome)
    for case, (seconds, messages) in outcome.series.items():
        axes.plot(seconds, messages, marker=".", label=case)
    axes.set(xlabel="s since the first batch was planned", ylabel="messages")
    axes.legend()
    return figure


def save(figure: Any, file: Path) -> None:
    """Write the figure as PNG, and close it."""
    figure.savefig(file, dpi=120)
    plt.close(figure)
