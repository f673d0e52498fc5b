"""Ingest: the rate at which a backlog of delayed messages goes into buckets, and how fast Spark alone reads it."""

from __future__ import annotations

from typing import Any

from benchmarks import noop_read
from benchmarks.aims import Figures, figure, ratio
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import progress_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

MESSAGES = 2_000_000
DUE_IN_S, SPREAD_S = 48 * 3600.0, 3600.0
TIMEOUT_S = 1200.0
RATE = 150_000
JOB, READ = "job", "Spark alone"
_BATCHES = 10


def measure(stand: Stand, scale: float) -> Outcome:
    """Fill the topic, let the job ingest it, and read the same topic with Spark alone."""
    count = int(MESSAGES * scale)
    # At full scale the default limits apply. A trial also needs several batches to measure a rate, and each batch must
    # seal.
    batch = count // _BATCHES
    fewer = [f"limits.messages_per_trigger={batch}", f"bucket.max_messages={batch // 10}"] if scale < 1 else []
    application = stand.application("ingest", *fewer)
    say(f"publishing {count:,} messages due in 48 h")
    seconds = Publisher(stand.bootstrap, application.input, PARTITIONS).preload(
        far_loads(count, DUE_IN_S, SPREAD_S), any_delay
    )
    say(f"published {count / seconds:,.0f}/s; the job ingests")
    job = stand.job(application)
    job.wait_for_messages(count, TIMEOUT_S)
    batches = job.intake()
    first, last = batches[0], batches[-1]
    usage = job.usage.between(first.planned_s, last.done_s)
    job.stop()
    say("Spark reads the same topic alone")
    with stand.watch() as watch:
        runs = noop_read.run(application.overrides)
    figures: dict[str, dict[str, Any]] = {
        JOB: {
            "messages": count,
            "messages_per_s": round((last.end - first.end) / (last.done_s - first.done_s)),
            "messages_per_s_with_first_batch": round(last.end / (last.done_s - first.planned_s)),
            "batches": len(batches),
            "sealed": job.sealed(),
            "start_s": round(job.start_s, 1),
            **stand.came_out(application),
            **usage,
        },
        READ: {"messages": count, "messages_per_s": round(max(runs)), "runs": runs} | watch.whole(),
    }
    of_read = ratio(figure(figures, JOB, "messages_per_s"), figure(figures, READ, "messages_per_s"))
    figures[JOB]["messages_per_s_to_read"] = of_read and round(of_read, 3)
    about = f"{count:,} messages due in 48 h, read into buckets"
    series = {
        "Delayline": [
            [0.0, *(round(batch.done_s - first.planned_s, 3) for batch in batches)],
            [0.0, *(float(batch.end) for batch in batches)],
        ],
        "Spark, reading alone": [[0.0, round(count / max(runs), 3)], [0.0, float(count)]],
    }
    return Outcome("ingest", about, aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: a rate; nothing delivered (two days early), and no dead letter."""
    return [
        Aim("messages/s sealed or held", figure(figures, JOB, "messages_per_s"), RATE, "/s", at_least=True),
        Aim("came out", figure(figures, JOB, "came_out"), 0),
        Aim("dead letters", figure(figures, JOB, "dead_letters"), 0),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the number of committed messages over time."""
    return progress_figure(outcome)
