"""Overload: ten times as much comes in as the job takes, while messages that were accepted before fall due."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.job import Application, Job
from benchmarks.load import Header, Load, Publisher, any_delay
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

# What a batch takes, and so what a publisher must send to be ten times over it; the machine must manage both.
PER_TRIGGER, TRIGGER_S = 1_000, 0.5
FLOOD_RATE = int(10 * PER_TRIGGER / TRIGGER_S)
FLOOD_S = 300.0
# Those that are accepted before: so many fall due in each second of the flood.
ACCEPTED_RATE = 200
_CALM_S = 30.0
_INGEST_TIMEOUT_S = 600.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Let accepted messages fall due in a calm and in a flood; compare lateness and memory, and ask for the lag."""
    flood_s = max(20.0, FLOOD_S * scale)
    application = stand.application("overload", f"limits.messages_per_trigger={PER_TRIGGER}")
    count = int(ACCEPTED_RATE * (_CALM_S + flood_s))
    job = stand.job(application)
    ready_s = count / PER_TRIGGER * TRIGGER_S * 3 + 20
    first_due_s = time.time() + ready_s
    say(f"publishing {count:,} messages that fall due from {ready_s:.0f} s from now on")
    _publish_accepted(stand, application, count, first_due_s, _CALM_S + flood_s)
    job.wait_for_messages(count, _INGEST_TIMEOUT_S)
    if time.time() > first_due_s:
        raise RuntimeError("they were not accepted in time: the machine is too busy")
    out = stand.folder / "overload.npz"
    limit_s = first_due_s - time.time() + _CALM_S + flood_s + 120
    with Receiver(stand.bootstrap, application.output, PARTITIONS, 10**12, limit_s - 60, out) as receiver:
        time.sleep(max(0.0, first_due_s + _CALM_S - time.time()))
        begun_s = time.time()
        say(f"{FLOOD_RATE:,} messages/s for {flood_s:.0f} s into a job that takes {PER_TRIGGER / TRIGGER_S:,.0f}")
        flooded = _flood(stand, application, count, flood_s)
        ended_s = time.time()
        lag = _lag(application)
        received = receiver.result()
    job.check()
    return _outcome(received, count, flooded, (first_due_s, begun_s, ended_s), lag, job)


def draw(outcome: Outcome) -> Any:
    """Draw the lateness of accepted messages over the time at which they fell due."""
    figure, axes = figure_of(outcome)
    for case, (seconds, values) in outcome.series.items():
        axes.plot(seconds, values, label=case)
    axes.set(xlabel="due, s from the start of the flood", ylabel="received - deliver_at, ms: largest in a second")
    axes.legend()
    return figure


def _publish_accepted(stand: Stand, application: Application, count: int, first_due_s: float, spread_s: float) -> None:
    chance = random.Random(5)
    stamp_ms = time.time_ns() // 1_000_000
    dues = (int((first_due_s + chance.uniform(0, spread_s)) * 1000) for _ in range(count))
    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    publisher.preload((Load(number, due, stamp_ms) for number, due in enumerate(dues)), any_delay)
    publisher.close()


def _flood(stand: Stand, application: Application, first: int, seconds: float) -> int:
    """Publish ten times too much, due after 5-60 s, and return how many."""
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
    """Return the lag that `delayline status` tells."""
    command = [sys.executable, "-m", "streaming.cli", "status", "--format", "json"]
    for override in application.overrides:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(json.loads(done.stdout)["input_lag"]["total"])


def _outcome(
    received: Received, count: int, flooded: int, times_s: tuple[float, float, float], lag: int, job: Job
) -> Outcome:
    first_due_s, begun_s, ended_s = times_s
    accepted = received.where(received["number"] < count)
    due_s = accepted["due_us"] / 1e6
    late_ms = accepted.lateness_ms
    # The first seconds are those of a cold JVM.
    calm = (due_s >= first_due_s + _CALM_S / 2) & (due_s < begun_s)
    flood = (due_s >= begun_s) & (due_s < ended_s)
    p99 = {name: float(np.percentile(late_ms[chosen], 99)) for name, chosen in (("calm", calm), ("flood", flood))}
    memory = {
        "calm": job.usage.between(first_due_s, begun_s)["mb_job"],
        "flood": job.usage.between(begun_s, ended_s)["mb_job"],
    }
    longest_batch_s = job.triggers(begun_s, ended_s)["plan_to_commit_p99_s"]
    faults = accepted.faults(count)
    figures: dict[str, dict[str, Any]] = {
        name: {"p50_ms": round(float(np.percentile(late_ms[chosen], 50)), 1), "p99_ms": round(p99[name], 1)}
        | {"max_ms": round(float(late_ms[chosen].max()), 1), "messages": int(chosen.sum()), "mb_job": memory[name]}
        for name, chosen in (("calm", calm), ("flood", flood))
    }
    figures["flood"] |= {"published": flooded, "lag at its end": lag, "batch p99 s": longest_batch_s, **faults}
    aims = [
        Aim("p99 of accepted messages, to that in the calm", p99["flood"] / p99["calm"], 2.0),
        Aim("largest lateness of those, to the p99 of a batch", late_ms[flood].max() / 1000 / longest_batch_s, 4.0),
        Aim("memory, to that in the calm", memory["flood"] / memory["calm"], 1.3),
        Aim("published to taken in", flooded / max(1, flooded - lag), 5.0, at_least=True),
        *(Aim(name, faults[name], 0) for name in ("early", "lost", "duplicates")),
    ]
    taken = PER_TRIGGER / TRIGGER_S
    about = f"{FLOOD_RATE:,} messages/s for {ended_s - begun_s:.0f} s into a job set to {taken:,.0f}/s"
    return Outcome("overload", about, aims, figures, {"accepted before": _largest(due_s - begun_s, late_ms)})


def _largest(seconds: Any, values: Any) -> list[list[float]]:
    whole = np.floor(seconds)
    at = np.unique(whole)
    return [at.tolist(), [round(float(values[whole == second].max()), 1) for second in at]]
