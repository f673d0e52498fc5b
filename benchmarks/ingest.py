"""Ingest: a backlog of delayed messages into buckets, against what Spark needs to do no more than read it."""

from __future__ import annotations

from typing import Any

from benchmarks import noop_read
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

MESSAGES = 2_000_000
DUE_IN_S, SPREAD_S = 48 * 3600.0, 3600.0
TIMEOUT_S = 1200.0
_BATCHES = 10


def measure(stand: Stand, scale: float) -> Outcome:
    """Preload, let the job ingest all, and read the same topic with Spark alone."""
    count = int(MESSAGES * scale)
    # The default at full scale; fewer messages must come in several batches too, or there is no rate.
    fewer = [f"limits.messages_per_trigger={count // _BATCHES}"] if scale < 1 else []
    application = stand.application("ingest", *fewer)
    say(f"publishing {count:,} messages due in 48 h")
    seconds = Publisher(stand.bootstrap, application.input, PARTITIONS).preload(
        far_loads(count, DUE_IN_S, SPREAD_S), any_delay
    )
    say(f"published {count / seconds:,.0f}/s; the job ingests")
    job = stand.job(application)
    job.wait_for_messages(count, TIMEOUT_S)
    batches = [batch for batch in job.batches.batches if batch.end]
    batches = [batch for batch, before in zip(batches, [None, *batches], strict=False)
               if before is None or batch.end > before.end]  # fmt: skip
    first, last = batches[0], batches[-1]
    usage = job.usage.between(first.planned_s, last.committed_s)
    sealed = sum(messages for messages, _ in job.batch_lines().values())
    job.stop()
    say("Spark reads the same topic alone")
    plain = noop_read.run(application.overrides)
    rate = (last.end - first.end) / (last.committed_s - first.committed_s)
    whole = count / (last.committed_s - first.planned_s)
    plain_rate = max(plain)
    figures: dict[str, dict[str, Any]] = {
        "job": {
            "messages": count,
            "messages_per_s": round(rate),
            "messages_per_s_with_first_batch": round(whole),
            "ratio_with_first_batch": round(whole / plain_rate, 3),
            "batches": len(batches),
            "sealed": sealed,
            "start_s": round(job.start_s, 1),
            **usage,
        },
        "Spark alone": {"messages": count, "messages_per_s": round(plain_rate), "runs": plain},
    }
    about = f"{count:,} messages due in 48 h, read into buckets"
    series = {
        "Delayline": [
            [0.0, *(round(batch.committed_s - first.planned_s, 3) for batch in batches)],
            [0.0, *(float(batch.end) for batch in batches)],
        ],
        "Spark, reading alone": [[0.0, round(count / plain_rate, 3)], [0.0, float(count)]],
    }
    aim = Aim("messages/s sealed or held, of Spark's reading alone", rate / plain_rate, 0.5, at_least=True)
    return Outcome("ingest", about, [aim], figures, series)


def draw(outcome: Outcome) -> Any:
    """Draw messages committed over time."""
    figure, axes = figure_of(outcome)
    for case, (seconds, messages) in outcome.series.items():
        axes.plot(seconds, messages, marker=".", label=case)
    axes.set(xlabel="s since the first batch was planned", ylabel="messages")
    axes.legend()
    return figure
