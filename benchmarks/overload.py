"""Overload: ten times more messages arrive than the job accepts, while messages accepted before fall due."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.aims import FAULTS, Figures, fault_aims, figure, ratio
from benchmarks.job import Application, Job
from benchmarks.load import Header, Load, Publisher, any_delay
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import due_between, percentiles
from benchmarks.waiting import say

# Messages that a batch accepts, and its duration. The flood is ten times that rate; the machine must manage both.
PER_TRIGGER, TRIGGER_S = 1_000, 0.5
FLOOD_RATE = int(10 * PER_TRIGGER / TRIGGER_S)
FLOOD_S = 300.0
# How many of the messages accepted before the flood fall due in each second of it.
ACCEPTED_RATE = 200
CALM, FLOOD, ALL = "calm", "flood", "all that came"
# At the end most of the flood is still in the input topic, so these messages cannot count as lost.
FAULTS_OF_ALL = tuple(name for name in FAULTS if name not in ("lost", "inversions", "out_of_order"))
# The reference is a minute of calm, after the job has delivered for half a minute.
WARM_UP_S, CALM_S, SHORTEST_S = 30.0, 60.0, 15.0
_INGEST_TIMEOUT_S = 600.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Let accepted messages fall due in a calm and in a flood; compare lateness and memory, and read the input lag."""
    warm_up_s, calm_s, flood_s = (max(SHORTEST_S, full_s * scale) for full_s in (WARM_UP_S, CALM_S, FLOOD_S))
    before_s = warm_up_s + calm_s
    application = stand.application("overload", f"limits.messages_per_trigger={PER_TRIGGER}")
    count = int(ACCEPTED_RATE * (before_s + flood_s))
    job = stand.job(application)
    ready_s = count / PER_TRIGGER * TRIGGER_S * 3 + 20
    first_due_s = time.time() + ready_s
    say(f"publishing {count:,} messages that fall due from {ready_s:.0f} s from now on")
    _publish_accepted(stand, application, count, first_due_s, before_s + flood_s)
    job.wait_for_messages(count, _INGEST_TIMEOUT_S)
    if time.time() > first_due_s:
        raise RuntimeError("the messages were not accepted in time: the machine is too busy")
    out = stand.folder / "overload.npz"
    limit_s = first_due_s - time.time() + before_s + flood_s + 120
    with Receiver(stand.bootstrap, [application.output], PARTITIONS, 10**12, limit_s - 60, out) as receiver:
        time.sleep(max(0.0, first_due_s + before_s - time.time()))
        begun_s = time.time()
        say(f"{FLOOD_RATE:,} messages/s for {flood_s:.0f} s into a job that takes {PER_TRIGGER / TRIGGER_S:,.0f}")
        flooded = _flood(stand, application, count, flood_s)
        ended_s = time.time()
        lag = _lag(application)
        received = receiver.result()
    job.check()
    windows = {CALM: (first_due_s + warm_up_s, begun_s), FLOOD: (begun_s, ended_s)}
    figures = _figures(received, count, flooded, windows, job)
    figures[FLOOD] |= {"published": flooded, "lag": lag}
    accepted = received.where(received["number"] < count)
    series = {"accepted before": _largest(accepted["due_us"] / 1e6 - begun_s, accepted.lateness_ms)}
    about = f"{FLOOD_RATE:,} messages/s for {flood_s:.0f} s into a job set to {PER_TRIGGER / TRIGGER_S:,.0f}/s"
    return Outcome("overload", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: the flood hardly affects messages accepted before, and it exceeds what the job accepts."""

    def of_calm(name: str) -> float | None:
        return ratio(figure(figures, FLOOD, name), figure(figures, CALM, name))

    largest_ms, batch_s = figure(figures, FLOOD, "max_ms"), figure(figures, FLOOD, "batch_steps_p99_s")
    published, lag = figure(figures, FLOOD, "published"), figure(figures, FLOOD, "lag")
    # At least one, so that a job that accepted nothing counts as flooded too.
    taken_in = None if published is None or lag is None else max(1.0, published - lag)
    return [
        Aim("p99 of accepted messages, to that in the calm", of_calm("p99_ms"), 2.0),
        Aim("largest lateness of those, to the p99 of a batch", ratio(largest_ms, batch_s and batch_s * 1000), 4.0),
        Aim("memory, to that in the calm", of_calm("mb_job"), 1.3),
        Aim("published to taken in", ratio(published, taken_in), 5.0, at_least=True),
        *fault_aims(figures, FLOOD),
        *fault_aims(figures, ALL, names=FAULTS_OF_ALL),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the lateness of messages accepted before the flood, over their due time."""
    drawn, axes = figure_of(outcome)
    for case, (seconds, values) in outcome.series.items():
        axes.plot(seconds, values, label=case)
    axes.set(xlabel="due, s from the start of the flood", ylabel="received - deliver_at, ms: largest in a second")
    axes.legend()
    return drawn


def _publish_accepted(stand: Stand, application: Application, count: int, first_due_s: float, spread_s: float) -> None:
    chance = random.Random(5)
    stamp_ms = time.time_ns() // 1_000_000
    dues = (int((first_due_s + chance.uniform(0, spread_s)) * 1000) for _ in range(count))
    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    publisher.preload((Load(number, due, stamp_ms) for number, due in enumerate(dues)), any_delay)
    publisher.close()


def _flood(stand: Stand, application: Application, first: int, seconds: float) -> int:
    """Publish ten times the job's rate, with delays of 5-60 s; return the number of messages."""
    chance = random.Random(6)

    def delayed(number: int, now_s: float) -> tuple[int, list[Header]]:
        stamp_ms = int(now_s * 1000)
        due_ms = stamp_ms + chance.randrange(5_000, 60_000)
        return due_ms * 1000, [any_delay(Load(number, due_ms, stamp_ms))]

    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    count = publisher.pace(FLOOD_RATE, seconds, delayed, first)
    publisher.close()
    return count


def _lag(application: Application) -> int:
    """Return the lag that `delayline status` prints."""
    command = [sys.executable, "-m", "streaming.cli", "status", "--format", "json"]
    for override in application.overrides:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(json.loads(done.stdout)["input_lag"]["total"])


def _figures(
    received: Received, count: int, flooded: int, windows_s: dict[str, tuple[float, float]], job: Job
) -> dict[str, dict[str, Any]]:
    """Return lateness and cost in both windows (epoch s), and the faults, of `count` messages and the `flooded`."""
    accepted = received.where(received["number"] < count)
    figures: dict[str, dict[str, Any]] = {}
    for case, window_s in windows_s.items():
        late_ms = due_between(accepted, *window_s).lateness_ms
        figures[case] = {"messages": len(late_ms), **percentiles(late_ms)}
        figures[case] |= job.triggers(*window_s) | job.usage.between(*window_s)
    figures[FLOOD] |= accepted.faults(count)
    # The flood's numbers follow the numbers of those messages.
    faults = received.faults(count + flooded)
    return figures | {ALL: {name: faults[name] for name in FAULTS_OF_ALL}}


def _largest(seconds: Any, values: Any) -> list[list[float]]:
    """Return the whole seconds, and the largest value within each."""
    floors = np.floor(seconds)
    unique = np.unique(floors)
    return [unique.tolist(), [round(float(values[floors == second].max()), 1) for second in unique]]
