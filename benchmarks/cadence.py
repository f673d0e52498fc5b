"""Cadence: the cost, the intake and the answers of batches at each `forward.trigger`.

Each job takes in a backlog, then serves a load that forwarders take, then answers cancels. Cancels begin a batch at
once, whatever the trigger is.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks import cancels
from benchmarks.aims import Figures, fault_aims, figure, held_aim, ratio
from benchmarks.lateness import LONGEST_S, SHORTEST_S
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, curve, run_through
from conf.settings import Settings

# In ms, by the name of the case. A quarter of `clock.horizon` is the longest that counts.
TRIGGERS = {f"{trigger_ms / 1000:g} s": trigger_ms for trigger_ms in (500, 1_000, 2_000, 5_000, 10_000)}
DEFAULT = f"{Settings().forward.trigger / 1000:g} s"
WAITING, WAITING_FOR_S, WAITING_SPREAD_S = 500_000, 48 * 3600.0, 3600.0
RATE, WARM_UP_S, LOAD_S = 1_000, 15.0, 45.0
REQUESTS_PER_S, ASKED_S = 100, 15.0
CORES, ANSWER_P99_MS, OF_BEST_INGEST = 0.5, 5_000.0, 0.9
_INGEST_TIMEOUT_S = 300.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Measure each trigger with a job of its own."""
    figures: dict[str, dict[str, Any]] = {}
    series = {}
    for case, trigger_ms in TRIGGERS.items():
        application = stand.application(f"cadence-{trigger_ms}", f"forward.trigger={trigger_ms}ms")
        waiting = int(WAITING * scale)
        Publisher(stand.bootstrap, application.input, PARTITIONS).preload(
            far_loads(waiting, WAITING_FOR_S, WAITING_SPREAD_S), any_delay
        )
        job = stand.job(application)
        job.wait_for_messages(waiting, _INGEST_TIMEOUT_S)
        batches = job.intake()
        traffic = Traffic(RATE, SHORTEST_S, LONGEST_S, WARM_UP_S, max(15.0, LOAD_S * scale), waiting)
        lateness_ms, figures[case] = run_through(stand, application, job, traffic)
        series[case] = curve(lateness_ms)
        figures[case]["ingested_per_s"] = round(batches[-1].end / (batches[-1].done_s - batches[0].planned_s))
        asker = cancels.ask(stand, application, waiting, REQUESTS_PER_S, ASKED_S)
        printed, _ = asker.communicate(timeout=300)
        figures[case] |= json.loads(printed)
        job.stop()
    about = f"one job for each forward.trigger: {WAITING:,} waiting, {RATE:,} messages/s, then cancels"
    return Outcome("cadence", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims for the default trigger, and that no trigger causes a fault."""
    best = max((figure(figures, case, "ingested_per_s") or 0 for case in TRIGGERS), default=0)
    ingested = ratio(figure(figures, DEFAULT, "ingested_per_s"), best)
    return [
        Aim(f"cores of all processes of the job, {DEFAULT}", figure(figures, DEFAULT, "cpu_job"), CORES),
        Aim(f"messages/s taken in, of the best trigger, {DEFAULT}", ingested, OF_BEST_INGEST, at_least=True),
        Aim(f"answers to cancels, p99, {DEFAULT}", figure(figures, DEFAULT, "answer_p99_ms"), ANSWER_P99_MS, "ms"),
        *(aim for case in TRIGGERS for aim in (held_aim(figures, case), *fault_aims(figures, case))),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the lateness at each trigger."""
    return lateness_figure(outcome, 40.0)
