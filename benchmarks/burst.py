"""Burst: a million messages due at the same instant, compared with as many bare producers as the job has shards.

Delivery is over when the end offsets have all messages: a subscriber at that rate would take one of two cores. All of
them are read back afterwards, and checked for faults. A bare producer has written its first transaction before the
clock starts, and writes the same values, keys and headers.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.aims import Figures, fault_aims, figure, ratio
from benchmarks.bare_producer import rate as bare_rate
from benchmarks.job import Application, Job
from benchmarks.load import Load, Publisher, instant
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Received, Receiver
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say, wait_until

MESSAGES = 1_000_000
# Seconds from the start of publishing to the burst. More than `clock.horizon`, so that the messages wait in buckets
# before they are staged.
LEAD_S, SHORTEST_LEAD_S = 120.0, 80.0
TIMEOUT_S = 600.0
JOB, MANY, BARE = "one release process", "a release process for each shard", "bare producers"
RATE, OF_BARE = 150_000, 0.5
_SETTLED_S = 3.0
# Shortly before the instant, end offsets are polled more often: the job is idle, and early messages would show.
_CLOSE_S, _CLOSE_POLL_S, _POLL_S = 1.0, 0.002, 0.05


def measure(stand: Stand, scale: float) -> Outcome:
    """Publish to a running job, wait for the instant, and watch the end offsets that read_committed consumers see.

    It runs once with the default settings, and once with one release process for each shard.
    """
    count = int(MESSAGES * scale)
    figures: dict[str, dict[str, Any]] = {}
    series: dict[str, list[list[float]]] = {}
    for case, name, overrides in ((JOB, "burst", ()), (MANY, "burst-many", ("release.processes=2",))):
        application = stand.application(name, *overrides)
        figures[case], points = _case(stand, application, count, scale)
        series[case] = [list(column) for column in zip((0.0, 0.0), *points, strict=True)]
    shards = application.settings.bucket.shards
    say(f"{shards} bare producers write the same")
    with stand.watch() as watch:
        bare = bare_rate(stand.bootstrap, stand.topic("bare", shards), count, shards)
    figures[BARE] = {"producers": shards, "messages": count // shards * shards, "messages_per_s": round(bare)}
    figures[BARE] |= watch.whole()
    series[f"{shards} bare producers"] = [[0.0, round(count / bare, 3)], [0.0, float(count)]]
    about = f"{count:,} messages due at the same instant, {shards} shards"
    return Outcome("burst", about, aims_of(figures), figures, series)


def _case(
    stand: Stand, application: Application, count: int, scale: float
) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Return the figures of one job, and (s since due, visible messages) for each change."""
    job = stand.job(application)
    due_s = int(time.time() + max(SHORTEST_LEAD_S, LEAD_S * scale))
    ingested = _ingest(application, job, count, due_s, stand.bootstrap)
    points = _watch(stand, application, count, due_s, job)
    usage = job.usage.between(due_s, due_s + points[-1][0])
    ingested |= _staged(job, due_s)
    job.stop()
    faults = _read_back(stand, application, count).faults(count)
    # Records are read after the run, so their arrival times do not show early ones; the end offsets do.
    faults["early"] = int(max((visible for at_s, visible in points if at_s < 0), default=0))
    figures = {
        "messages": count,
        "messages_per_s": round(count / points[-1][0]),
        "first_visible_s": next(at_s for at_s, visible in points if visible),
        "last_visible_s": points[-1][0],
        **ingested,
        **faults,
        **usage,
    }
    return figures, points


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: a rate, half the rate of one bare producer for each shard on this broker, and no fault."""
    rate, many, bare = (figure(figures, case, "messages_per_s") for case in (JOB, MANY, BARE))
    of_bare = "messages/s, of as many bare producers' as shards"
    return [
        Aim("messages/s delivered", rate, RATE, "/s", at_least=True),
        Aim(f"{of_bare}, {JOB}", ratio(rate, bare), OF_BARE, at_least=True),
        Aim(f"{of_bare}, {MANY}", ratio(many, bare), OF_BARE, at_least=True),
        *fault_aims(figures, JOB),
        *fault_aims(figures, MANY),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the number of visible messages over time."""
    drawn, axes = figure_of(outcome)
    for case, (seconds, messages) in outcome.series.items():
        axes.plot(seconds, messages, label=case, drawstyle="steps-post" if len(seconds) > 2 else "default")
    axes.set(xlabel="s since deliver_at", ylabel="committed messages")
    axes.legend()
    return drawn


def _ingest(application: Application, job: Job, count: int, due_s: int, bootstrap: str) -> dict[str, float]:
    """Publish, and wait until the job has accepted everything.

    Raises RuntimeError if that ended after the release processes began with the burst, `release.lead` before it.
    """
    say(f"publishing {count:,} messages due in {due_s - time.time():.0f} s, all at once")
    now_ms = time.time_ns() // 1_000_000
    loads = (Load(number, due_s * 1000, now_ms) for number in range(count))
    Publisher(bootstrap, application.input, PARTITIONS).preload(loads, instant)
    job.wait_for_messages(count, TIMEOUT_S)
    spare_s = due_s - application.settings.release.lead / 1000 - job.batches.batches[-1].committed_s
    say(f"ingested with {spare_s:.0f} s to spare, {job.sealed():,} sealed")
    if spare_s < 0:
        raise RuntimeError(f"the ingest ended {-spare_s:.1f} s after the burst began: raise burst.LEAD_S")
    return {"sealed": job.sealed(), "ingested_before_s": round(spare_s, 1)}


def _staged(job: Job, due_s: int) -> dict[str, float]:
    """Return how long before the instant all messages were staged, by the job's log; negative if after it."""
    done_s = [line.done_s for line in job.batch_lines().values() if line.cutoff_ms > due_s * 1000]
    return {"staged_before_s": round(due_s - min(done_s), 1)} if done_s else {}


def _watch(stand: Stand, application: Application, count: int, due_s: int, job: Job) -> list[tuple[float, float]]:
    """Return (s since due, visible offsets) for each change of the end offsets, until they no longer grow.

    Polling end offsets takes almost no CPU; a subscriber at this rate would take one of the two cores. The end offsets
    include transaction markers, about one for thousands of messages.
    """
    points: list[tuple[float, float]] = []

    def settled() -> bool:
        visible = float(sum(stand.end_offsets(application.output)))
        # Taken after the answer, so that records visible before the instant are certainly early.
        now_s = time.time()
        if visible > (points[-1][1] if points else 0.0):
            points.append((round(now_s - due_s, 3), visible))
        return bool(points) and points[-1][1] >= count and now_s - due_s - points[-1][0] > _SETTLED_S

    def poll_s() -> float:
        return _CLOSE_POLL_S if -_CLOSE_S < time.time() - due_s < 0 else _POLL_S

    limit_s = due_s - time.time() + TIMEOUT_S
    wait_until(settled, limit_s, f"{count:,} messages delivered", job.check, poll_s)
    return points


def _read_back(stand: Stand, application: Application, count: int) -> Received:
    out = stand.folder / "burst.npz"
    with Receiver(stand.bootstrap, [application.output], PARTITIONS, count, 60 + count / 20_000, out) as receiver:
        return receiver.result()
