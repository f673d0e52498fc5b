"""Hot: all messages are for one output partition, at 10,000, 50,000 and 100,000 due in each second.

One shard owns a partition, and one release process a shard, so more shards do not help. The end offset of the partition
is compared with the number of messages due by then. All messages are read back afterwards, and checked for faults.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.aims import Figures, fault_aims, figure
from benchmarks.job import Job
from benchmarks.load import Load, Publisher, instant
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say, wait_until

CASES = {f"{rate:,} messages/s": rate for rate in (10_000, 50_000, 100_000)}
SECONDS, SHORTEST_S = 20.0, 5.0
# Seconds from the start of publishing to the first due time: more than `clock.horizon`, and the time to take them in.
_LEAD_S, _INGEST_RATE = 80.0, 40_000
KEPT_UP, BEHIND_S = 0.95, 1.0
_TIMEOUT_S, _POLL_S, _SETTLED_S = 600.0, 0.02, 3.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Let messages fall due at each rate, and watch the end offset of the only output partition."""
    seconds = max(SHORTEST_S, SECONDS * scale)
    figures: dict[str, dict[str, Any]] = {}
    series: dict[str, list[list[float]]] = {}
    for case, rate in CASES.items():
        figures[case], points = _case(stand, rate, seconds)
        series[case] = [list(column) for column in zip(*points, strict=True)]
    about = f"messages for one output partition, due over {seconds:g} s"
    return Outcome("hot", about, aims_of(figures), figures, series)


def _case(stand: Stand, rate: int, seconds: float) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Return the figures of one rate, and (s since the first is due, s behind) for each look."""
    count = int(rate * seconds)
    application = stand.application(f"hot-{rate}", output_partitions=1)
    job = stand.job(application)
    lead_s = _LEAD_S + count / _INGEST_RATE
    say(f"publishing {count:,} messages due at {rate:,}/s, from {lead_s:.0f} s from now on")
    stamp_ms = time.time_ns() // 1_000_000
    first_ms = stamp_ms + int(lead_s * 1000)
    loads = (Load(number, first_ms + number * 1000 // rate, stamp_ms) for number in range(count))
    Publisher(stand.bootstrap, application.input, PARTITIONS).preload(loads, instant)
    job.wait_for_messages(count, _TIMEOUT_S)
    first_s = first_ms / 1000
    if time.time() > first_s:
        raise RuntimeError("the messages were not accepted in time: raise hot._LEAD_S")
    points, done_s = _watch(stand, job, application.output, count, rate, first_s)
    usage = job.usage.between(first_s, first_s + done_s)
    job.stop()
    with Receiver(stand.bootstrap, [application.output], 1, count, 60 + count / 20_000, stand.folder / "hot.npz") as it:
        received = it.result()
    figures = {
        "messages": count,
        "messages_per_s": round(count / done_s),
        "behind_p50_s": round(float(np.median([behind_s for _, behind_s in points])), 3),
        "behind_most_s": round(max(behind_s for _, behind_s in points), 3),
        **received.faults(count),
        **usage,
    }
    return figures, points


def _watch(
    stand: Stand, job: Job, topic: str, count: int, rate: int, first_s: float
) -> tuple[list[tuple[float, float]], float]:
    """Return how far the partition is behind over time, until all is visible, and when that is: s since `first_s`.

    The end offset includes transaction markers, about one for thousands of messages.
    """
    points: list[tuple[float, float]] = []

    def is_done() -> bool:
        [visible] = stand.end_offsets(topic, 1)
        at_s = time.time() - first_s
        if at_s > 0:
            points.append((round(at_s, 3), round(min(at_s, count / rate) - min(visible, count) / rate, 3)))
        return visible >= count

    wait_until(is_done, first_s - time.time() + _TIMEOUT_S, f"{count:,} messages delivered", job.check, lambda: _POLL_S)
    done_s = time.time() - first_s
    # Behind the markers there may be messages.
    time.sleep(_SETTLED_S)
    return points, done_s


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims for each rate: the partition keeps up with due messages, and has no fault."""
    aims: list[Aim] = []
    for case, rate in CASES.items():
        per_s, behind_s = figure(figures, case, "messages_per_s"), figure(figures, case, "behind_most_s")
        aims += [
            Aim(f"messages/s delivered, {case}", per_s, KEPT_UP * rate, "/s", at_least=True),
            Aim(f"behind what is due at the most, {case}", behind_s, BEHIND_S, "s"),
            *fault_aims(figures, case),
        ]
    return aims


def draw(outcome: Outcome) -> Any:
    """Draw how far the partition is behind over time."""
    drawn, axes = figure_of(outcome)
    for case, (seconds, behind_s) in outcome.series.items():
        axes.plot(seconds, behind_s, label=case)
    axes.set(xlabel="s since the first is due", ylabel="s behind what is due")
    axes.legend()
    return drawn
