"""Scale: the cost of a job, and the duration of its restart, while 1, 10 and 100 million messages wait.

They are due from 48 h after the start on: within ten minutes, the load of Pulsar's benchmark of its bucket tracker, or
spread as `feed.SPREADS` says.
"""

from __future__ import annotations

import shutil
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import feed
from benchmarks.feed import Feed
from benchmarks.job import Application, Job
from benchmarks.outcome import Outcome
from benchmarks.plots import figure_of, save
from benchmarks.provenance import provenance, service_code
from benchmarks.scale_phases import COLUMNS, Phases
from benchmarks.scale_runs import CLOSE, NAME, CaseFigures, Run, outcome_of, read_runs, result_name
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say, wait_until

COUNTS = (1_000_000, 10_000_000, 100_000_000)
PROGRESS_S, STALL_S = 60.0, 300.0
SLOWEST_PER_S, LEAST_S = 5000, 600
# Tables and checkpoint take 150-200 bytes for each message. The topic, and files not yet vacuumed, need more.
DISK_BYTES_PER_MESSAGE, DISK_SPARE_BYTES = 300, 4 * 2**30


def run(counts: list[int], share: float, out: Path, spread: str) -> bool:
    """Measure each of `counts` and add it to the result file in `out`; return whether everything was measured.

    `share` shortens all phases but the ingest, and `spread` is one of `feed.SPREADS`. The first failure ends the run,
    because larger counts would fail too.
    """
    name = result_name(spread)
    for count in counts:
        begun = time.monotonic()
        say(f"{name}: {count:,} messages")
        try:
            done = _run(count, share, spread)
        except Exception:  # noqa: BLE001, the other measurements are worth their time
            traceback.print_exc()
            return False
        # Read the file again: another process may have added a run meanwhile.
        others = [run for run in read_runs(out / f"{name}.json") if run.messages != count]
        outcome = outcome_of([*others, done], spread, read_runs(out / f"{result_name(CLOSE)}.json"))
        outcome.write(out, share)
        save(draw(outcome), out / f"{name}.png")
        outcome.show()
        say(f"{name}: {count:,} messages in {time.monotonic() - begun:.0f} s; {out / name}.json, .png")
        if done.failed:
            say(f"{name}: not measured: {', '.join(done.failed)}")
            return False
    return True


def draw(outcome: Outcome) -> Any:
    """Draw the memory of the job's JVM and of its Python processes over the number of waiting messages."""
    drawn, axes = figure_of(outcome)
    for number, (case, series) in enumerate(outcome.series.items()):
        columns = dict(zip(COLUMNS, series, strict=True))
        # A logarithmic axis has no zero.
        ingested = np.maximum(columns["ingested"], 1e4)
        axes.plot(ingested, columns["rss_mb_jvm"], color=f"C{number}", label=f"JVM, {case}")
        axes.plot(ingested, columns["rss_mb_python"], color=f"C{number}", linestyle=":", label=f"Python, {case}")
    axes.set(xscale="log", xlabel="messages ingested", ylabel="resident set, MB", ylim=(0, None))
    axes.legend(fontsize=8)
    return drawn


def _run(count: int, share: float, spread: str) -> Run:
    """Warm a job up, measure with nothing waiting, ingest `count` messages, and measure the same again."""
    made = provenance(share)
    with Stand(feed.BROKER) as stand:
        _check_disk(stand.folder, count)
        stand.topic(f"{NAME}-in", config=feed.TOPIC)
        application = stand.application(NAME)
        begun_s = time.time()
        job = stand.job(application)
        phases = Phases(stand, application, job, share)
        none = phases.warm_up() | phases.none_waiting(begun_s)
        filling_s, ends, disk = time.time(), stand.end_offsets(application.input), phases.disk()
        waiting = _ingest(stand, application, job, sum(ends), count, spread)
        series = phases.series(begun_s, sum(ends), count)
        # Not of the last messages, which are in mutable buckets.
        sealed_ids = [f"{application.input}/0/{ends[0] + number}" for number in (1_000, 2_000)]
        waiting |= phases.waiting(filling_s, count, disk, sealed_ids)
    if made["machine"]["code"] != service_code():
        waiting["failed_code"] = "the service's files changed during the measurement"
    return Run(count, none, waiting, series, made)


def _check_disk(folder: Path, count: int) -> None:
    needed, free = count * DISK_BYTES_PER_MESSAGE + DISK_SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise RuntimeError(
            f"{folder} has {free / 2**30:.1f} GiB free, and {count:,} messages need {needed / 2**30:.1f}"
        )


def _ingest(stand: Stand, application: Application, job: Job, before: int, count: int, spread: str) -> CaseFigures:
    """Ingest `count` messages after the first `before`; return rates (messages/s) and CPU usage (cores)."""
    checkpoint = application.folder / "checkpoint"
    progress = _Progress(stand, application, job, before, count)
    with Feed(stand.bootstrap, application.input, PARTITIONS, before, count, checkpoint, spread) as source:

        def check() -> None:
            source.check()
            progress.check()

        limit_s = LEAST_S + count / SLOWEST_PER_S
        wait_until(lambda: job.batches.messages >= before + count, limit_s, f"{count:,} messages ingested", check)
        published = source.result()
    progress.check_outputs()
    batches = job.intake(before)
    start_s, end_s = batches[0].planned_s, batches[-1].done_s
    ends = [0, *(batch.end - before for batch in batches)]
    tenth, measured = count // 10, ends[-1]
    first_s, last_s = np.interp([tenth, measured - tenth], ends, [start_s, *(batch.done_s for batch in batches)])
    usage = job.usage.between(start_s, end_s)
    lines = job.batch_lines()
    return {
        "messages": count,
        "messages_per_s": round(measured / (end_s - start_s)),
        "first_tenth_per_s": round(tenth / (first_s - start_s)),
        "last_tenth_per_s": round(tenth / (end_s - last_s)),
        "ingest_s": round(end_s - start_s, 1),
        "batches": len(batches),
        "sealed": sum(lines[batch.batch_id].sealed for batch in batches if batch.batch_id in lines),
        **{f"ingest_{name}": cores for name, cores in usage.items() if name.startswith("cpu_")},
        "ingest_cpu_publisher": round(published["cpu_s"] / published["seconds"], 3),
        "publisher_held_back": round(published["held_s"] / published["seconds"], 3),
    }


class _Progress:
    """Watches the ingest of a run: prints its progress every minute, and raises if it cannot succeed."""

    def __init__(self, stand: Stand, application: Application, job: Job, before: int, count: int) -> None:
        self._stand, self._application, self._job = stand, application, job
        self._before, self._count = before, count
        self._reported_s = self._grown = time.monotonic()
        self._last = self._newest = 0
        self._came_out = stand.came_out(application)

    def check(self) -> None:
        """Raise RuntimeError if the job has ended or makes no progress, or if the disk is nearly full."""
        self._job.check()
        now, ingested = time.monotonic(), max(0, self._job.batches.messages - self._before)
        if ingested > self._newest:
            self._newest, self._grown = ingested, now
        if now - self._grown > STALL_S:
            raise RuntimeError(
                f"no message was ingested for {STALL_S:.0f} s, at {ingested:,}:\n{self._job.log[-3000:]}"
            )
        if now - self._reported_s >= PROGRESS_S:
            self._report(ingested, (ingested - self._last) / (now - self._reported_s))
            self._reported_s, self._last = now, ingested
            self.check_outputs()

    def check_outputs(self) -> None:
        """Raise RuntimeError if a message was delivered, which is two days early, or became a dead letter."""
        if (counts := self._stand.came_out(self._application)) != self._came_out:
            raise RuntimeError(f"{self._came_out} became {counts}, but nothing is due for 48 h")

    def _report(self, ingested: int, rate: float) -> None:
        samples = self._job.usage.memory_between(time.time() - PROGRESS_S, time.time())
        sizes = {role: size / 2**20 for role, size in samples[-1].rss.items()} if samples else {}
        free = shutil.disk_usage(self._stand.folder).free
        if free < DISK_SPARE_BYTES / 2:
            raise RuntimeError(f"only {free / 2**30:.1f} GiB are left on the disk, at {ingested:,} messages")
        memory = ", ".join(f"{role} {size:,.0f}" for role, size in sizes.items())
        say(f"{ingested:,} of {self._count:,}, {rate:,.0f}/s; RSS in MB: {memory}; disk free {free / 2**30:.1f} GiB")
