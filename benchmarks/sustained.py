"""Sustained: an hour of 30,000 messages/s that are due over a year: whether merges keep up with what is sealed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import feed
from benchmarks.aims import Figures, figure
from benchmarks.feed import Feed
from benchmarks.footprint import delta_tables, live_files
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import grown
from benchmarks.waiting import say
from benchmarks.watch import Watch
from state.buckets.parts import has_part, marker_of, part_of

RATE, SECONDS, SPREAD = 30_000, 3600.0, "366d"
CASE = f"{RATE:,} messages/s"
# How much more a batch may leave unread at the end than at the beginning, in seconds of the load.
MOST_GROWN_S = 2.0
_SAMPLE_S = 30.0
_TIMEOUT_S = 900.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Publish at the rate, and watch the table."""
    seconds = max(60.0, SECONDS * scale)
    count = int(RATE * seconds)
    stand.topic("sustained-in", config=feed.TOPIC)
    application = stand.application("sustained")
    job = stand.job(application)
    checkpoint = application.folder / "checkpoint"
    say(f"{count:,} messages due over a year, at {RATE:,}/s")
    begun_s = time.time()
    arguments = (stand.bootstrap, application.input, PARTITIONS, 0, count, checkpoint, SPREAD, RATE)
    with Feed(*arguments) as source, TableWatch(application.folder) as table:
        published = source.run_into(job, count, seconds + _TIMEOUT_S)
    batches = job.intake()
    ended_s = batches[-1].done_s
    left_s = [max(0.0, (batch.done_s - begun_s) - batch.end / RATE) for batch in batches]
    sealed = job.sealed() / max(1, len(batches))
    usage = job.usage.between(begun_s, ended_s)
    job.stop()
    fan_in = application.settings.bucket.fan_in
    figures = {
        CASE: {
            "published": count,
            "publisher_held_back": round(published["held_s"] / published["seconds"], 3),
            "messages_per_s": round(count / (ended_s - begun_s)),
            "batches": len(batches),
            "batch_steps_s": round(float(np.median([batch.done_s - batch.planned_s for batch in batches])), 2),
            **({} if (more := grown(left_s)) is None else {"backlog_grown_s": round(more, 2)}),
            "sealed_at_once": round(sealed),
            "buckets_allowed": round(most_buckets(fan_in, count, sealed), 1),
            **table.figures(),
            **usage,
        }
    }
    return Outcome("sustained", f"{count:,} messages due over a year", aims_of(figures), figures, table.series(begun_s))


def most_buckets(fan_in: int, messages: int, sealed_at_once: float) -> float:
    """Return the bound of docs/platform/capacity.md, with one bucket that is being merged."""
    return (fan_in - 1) * (1 + math.log(max(fan_in, messages / max(1.0, sealed_at_once)), fan_in)) + 1


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: the job keeps up, and so do its merges."""
    return [
        Aim("messages a batch leaves unread, grown by", figure(figures, CASE, "backlog_grown_s"), MOST_GROWN_S, "s"),
        Aim(
            "buckets at the most",
            figure(figures, CASE, "buckets_most"),
            figure(figures, CASE, "buckets_allowed") or 0.0,
        ),
        Aim("publisher held back", figure(figures, CASE, "publisher_held_back"), 0.01),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw buckets and files over time."""
    drawn, axes = figure_of(outcome)
    for name, (minutes, numbers) in outcome.series.items():
        axes.plot(minutes, numbers, label=name)
    axes.set(xlabel="minutes", ylim=(0, None))
    axes.legend()
    return drawn


def buckets_of(paths: Iterable[str]) -> set[str]:
    """Return the names of the live buckets that have live files: sealed ones, and merged ones by their markers."""
    partitions = {path.partition("/")[0].removeprefix("part=") for path in paths}
    parts = set(map(part_of, filter(has_part, partitions)))
    return {name for part in parts if (name := marker_of(part) or part) == part or name in partitions}


class TableWatch(Watch):
    """Samples an application's table from its log: buckets, live files, and the bytes that were written."""

    def __init__(self, folder: Path) -> None:
        """`folder` has the application's storage."""
        super().__init__("table-watch")
        self._folder = folder
        self._samples: list[tuple[float, int, int]] = []
        # By whether a merge wrote them.
        self._written = {False: 0, True: 0}
        self._seen = -1

    def figures(self) -> Mapping[str, float]:
        """Return the most buckets and files, those at the end, and how often a byte that was sealed was rewritten."""
        if not self._samples:
            return {}
        _, buckets, files = zip(*self._samples, strict=True)
        return {
            "buckets_most": max(buckets),
            "buckets_last": buckets[-1],
            "files_most": max(files),
            "files_last": files[-1],
            "rewrites": round(self._written[True] / max(1, self._written[False]), 2),
        }

    def series(self, begun_s: float) -> dict[str, list[list[float]]]:
        """Return minutes since `begun_s` (epoch s) with the buckets, and with the files."""
        minutes = [round((at_s - begun_s) / 60, 1) for at_s, _, _ in self._samples]
        return {
            "buckets": [minutes, [float(buckets) for _, buckets, _ in self._samples]],
            "files": [minutes, [float(files) for _, _, files in self._samples]],
        }

    def run(self) -> None:
        """Take samples until the end."""
        while not self._ended.wait(_SAMPLE_S):
            for table in delta_tables(self._folder):
                self._add_written(table)
                live = live_files(table)
                self._samples.append((time.time(), len(buckets_of(live)), len(live)))

    def _add_written(self, table: Path) -> None:
        """Add the bytes of new commits, by whether a merge wrote them. The log keeps an hour of commits."""
        for commit in sorted((table / "_delta_log").glob("[0-9]*.json")):
            version = int(commit.name.split(".")[0])
            if version <= self._seen:
                continue
            self._seen = version
            for action in map(json.loads, commit.read_text().splitlines()):
                if "add" in action:
                    partition = action["add"]["partitionValues"]["part"]
                    self._written[has_part(partition) and marker_of(part_of(partition)) is not None] += action["add"][
                        "size"
                    ]
