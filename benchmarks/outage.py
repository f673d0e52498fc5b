"""Outage: the messages due while a part of the service is killed, and how long their deliveries stop.

One job goes through three deaths: of its release process, of its driver, and of the whole job. Another job has two
separate release processes, and one of them dies for good. Messages wait for 20-50 s, so that messages due during an
outage were staged before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.aims import LATENESS_MS, Figures, fault_aims, figure, held_aim, ratio
from benchmarks.job import Application, Job
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.receiver import Received
from benchmarks.release_processes import ReleaseCommand, shard_of
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import RunningTraffic, Traffic, due_between, percentiles
from benchmarks.waiting import say, wait_until

RATE, SHORTEST_S, LONGEST_S = 1000, 20.0, 50.0
CALM, DRIVER, TREE, RELEASE = "calm", "driver killed", "all killed", "release process killed"
CALM_OF_TWO, ONE_OF_TWO = "calm, two release processes", "one of two release processes killed"
ALL, ALL_OF_TWO = "all messages", "all messages, two release processes"
P99_MS, OF_CALM = LATENESS_MS["p99"], 1.5
# Seconds until every output partition has deliveries again.
TREE_S, RELEASE_S, ONE_OF_TWO_S = 3.0, 2.0, 10.0
# Until a killed driver's successor runs, and has caught up.
_RESTART_S = 90.0
_JOIN_TIMEOUT_S = 60.0
# A message due less than this before a kill may have been delayed by it.
_BEFORE_KILL_S = 1.0
_SETTINGS = ("release.processes=0",)


@dataclass(frozen=True)
class Schedule:
    """The seconds of the phases. Deliveries begin when the shortest delay is over, in the warm-up."""

    warm_up_s: float
    calm_s: float
    settle_s: float

    @classmethod
    def at(cls, scale: float) -> Schedule:
        """Return the schedule; `scale` shortens it."""
        return cls(max(30.0, 60 * scale), max(15.0, 60 * scale), max(15.0, 30 * scale))


@dataclass(frozen=True)
class Kill:
    """A kill that was done at `done_s`; the time until deliveries go on counts from `from_s`. Both are epoch s."""

    done_s: float
    from_s: float


def measure(stand: Stand, scale: float) -> Outcome:
    """Kill parts of the one job, then one of two release processes."""
    schedule = Schedule.at(scale)
    figures, series = _one_job(stand, schedule)
    of_two, series_of_two = _two_releases(stand, schedule)
    figures |= of_two
    about = f"{RATE:,} messages/s, due after {SHORTEST_S:.0f}-{LONGEST_S:.0f} s, while parts of the service are killed"
    return Outcome("outage", about, aims_of(figures), figures, series | series_of_two, alternatives_of(figures))


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims that must all be met: deliveries continue soon, and without faults."""
    return [
        *(
            Aim(f"{what}: every partition delivers again", figure(figures, what, "all_partitions_s"), limit_s, "s")
            for what, limit_s in ((TREE, TREE_S), (RELEASE, RELEASE_S), (ONE_OF_TWO, ONE_OF_TWO_S))
        ),
        *(aim for case in (ALL, ALL_OF_TWO) for aim in fault_aims(figures, case)),
        *(held_aim(figures, case) for case in (ALL, ALL_OF_TWO)),
    ]


def alternatives_of(figures: Figures) -> list[Aim]:
    """Return the aims of which one must be met: lateness without a driver is low, or as in the calm."""
    p99_ms = figure(figures, DRIVER, "p99_ms")
    of_calm = ratio(p99_ms, figure(figures, CALM, "p99_ms"))
    return [
        Aim(f"p99 of what was staged, {DRIVER}", p99_ms, P99_MS, "ms"),
        Aim(f"p99 of what was staged, {DRIVER}, of that in the calm", of_calm, OF_CALM),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the largest lateness of each second, over the due time."""
    drawn, axes = figure_of(outcome)
    for case, (seconds, values) in outcome.series.items():
        axes.plot(seconds, np.maximum(values, 0.1), label=case)
    axes.set(yscale="log", xlabel="due, s from the start of publishing", ylabel="largest lateness in a second, ms")
    axes.legend()
    return drawn


def _one_job(stand: Stand, schedule: Schedule) -> tuple[dict[str, dict[str, Any]], dict[str, list[list[float]]]]:
    application = stand.application("outage")
    job = stand.job(application)
    release_at_s = schedule.warm_up_s + schedule.calm_s
    driver_at_s = release_at_s + schedule.settle_s
    tree_at_s = driver_at_s + _RESTART_S
    seconds = tree_at_s + schedule.settle_s
    with RunningTraffic(stand, application, _traffic(seconds)) as traffic:
        traffic.wait_until(release_at_s)
        usage = job.usage.between(traffic.begun_s + schedule.warm_up_s, time.time())
        release = _kill(RELEASE, job.kill_releases)
        traffic.wait_until(driver_at_s)
        job.check()
        accepted = job.batches.newest
        driver = _kill(DRIVER, job.kill_driver)
        _, back_s = _start_again(job)
        traffic.wait_until(tree_at_s)
        tree = _kill(TREE, job.kill)
        started_s, _ = _start_again(job)
        received = traffic.result()
    job.stop()
    # All messages of a batch that was committed before the kill were staged: no delay is longer than the horizon.
    ends = {} if accepted is None else accepted.ends
    limits = np.array([ends.get(partition, 0) for partition in range(PARTITIONS)])
    staged = received.where(received["in_offset"] < limits[received["in_partition"]])
    figures = {
        CALM: _calm(received, traffic.begun_s, schedule) | usage,
        RELEASE: stopped(received, release),
        DRIVER: _late(due_between(staged, driver.done_s, back_s)) | {"away_s": round(back_s - driver.done_s, 1)},
        TREE: stopped(received, replace(tree, from_s=started_s)),
        ALL: traffic.faults(received),
    }
    return figures, {"one job": _largest(received, traffic.begun_s)}


def _two_releases(stand: Stand, schedule: Schedule) -> tuple[dict[str, dict[str, Any]], dict[str, list[list[float]]]]:
    application = stand.application("outage-two", *_SETTINGS)
    kill_at_s = schedule.warm_up_s + schedule.calm_s
    with ExitStack() as stack:
        names = ("a", "b")
        releases = [
            stack.enter_context(ReleaseCommand(name, application.overrides, application.folder)) for name in names
        ]

        def shared() -> bool:
            return all(len(release.shards) == application.settings.bucket.shards // len(names) for release in releases)

        wait_until(shared, _JOIN_TIMEOUT_S, "half of the shards for each release process", releases[0].check)
        job = stand.job(application)
        seconds = kill_at_s + max(schedule.settle_s, 3 * ONE_OF_TWO_S)
        with RunningTraffic(stand, application, _traffic(seconds)) as traffic:
            traffic.wait_until(kill_at_s)
            shards = releases[0].shards
            usage = job.usage.between(traffic.begun_s + schedule.warm_up_s, time.time())
            killed = _kill(ONE_OF_TWO, releases[0].kill)
            received = traffic.result()
        releases[1].check()
        job.stop()
    partitions = partitions_of(application, shards)
    others = received.where(~np.isin(received["partition"], partitions))
    end_s = traffic.begun_s + traffic.traffic.seconds
    figures = {
        CALM_OF_TWO: _calm(received, traffic.begun_s, schedule) | usage,
        ONE_OF_TWO: stopped(received, killed, partitions)
        | {"shards": len(shards)}
        | {f"others_{name}": value for name, value in _late(due_between(others, killed.done_s, end_s)).items()},
        ALL_OF_TWO: traffic.faults(received),
    }
    return figures, {"two release processes": _largest(received, traffic.begun_s)}


def _traffic(seconds: float) -> Traffic:
    return Traffic(RATE, SHORTEST_S, LONGEST_S, 0.0, seconds)


def stopped(received: Received, kill: Kill, partitions: Collection[int] = range(PARTITIONS)) -> dict[str, float]:
    """Return the seconds from `kill.from_s` until some, and until all of `partitions` delivered again.

    A message that was due after the kill was done cannot have been delivered before it. Returns nothing if a partition
    delivered no such message.
    """
    after = received.where(received["due_us"] >= kill.done_s * 1e6)
    first_s = [
        float(after["received_us"][after["partition"] == partition].min()) / 1e6 - kill.from_s
        for partition in partitions
        if (after["partition"] == partition).any()
    ]
    if not first_s or len(first_s) < len(partitions):
        return {}
    return {"next_delivery_s": round(min(first_s), 3), "all_partitions_s": round(max(first_s), 3)}


def _kill(what: str, kill: Callable[[], None]) -> Kill:
    """Kill, and return when. Deliveries may go on from the kill's beginning."""
    say(what)
    at_s = time.time()
    kill()
    return Kill(done_s=time.time(), from_s=at_s)


def _start_again(job: Job) -> tuple[float, float]:
    """Start the killed job, and wait until it runs; return the start and the end of that (epoch s)."""
    at_s = time.time()
    job.start()
    say(f"the job runs again, {job.start_s:.1f} s after the start of its process")
    return at_s, time.time()


def _calm(received: Received, begun_s: float, schedule: Schedule) -> dict[str, float]:
    start_s = begun_s + schedule.warm_up_s
    return _late(due_between(received, start_s, start_s + schedule.calm_s - _BEFORE_KILL_S))


def _late(received: Received) -> dict[str, float]:
    return {"messages": len(received["number"])} | percentiles(received.lateness_ms)


def partitions_of(application: Application, shards: Collection[int]) -> list[int]:
    """Return the partitions of the output topic that `shards` write to."""
    count = application.settings.bucket.shards
    return [partition for partition in range(PARTITIONS) if shard_of(application.output, partition, count) in shards]


def _largest(received: Received, begun_s: float) -> list[list[float]]:
    """Return the seconds from `begun_s`, and the largest lateness (ms) of the messages due in each."""
    due_s = np.floor(received["due_us"] / 1e6 - begun_s).astype(int)
    largest_ms = np.full(due_s.max(initial=-1) + 1, np.nan)
    np.fmax.at(largest_ms, due_s, received.lateness_ms)
    seconds = np.flatnonzero(~np.isnan(largest_ms))
    return [seconds.astype(float).tolist(), largest_ms[seconds].round(1).tolist()]
