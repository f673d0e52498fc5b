"""Spread: the cost of sealing messages due throughout a year, compared with the same number due close together."""

from __future__ import annotations

from typing import Any

from benchmarks.aims import Figures, figure, ratio
from benchmarks.footprint import delta_tables, live_files
from benchmarks.job import Application, Job
from benchmarks.load import Publisher, any_delay, far_loads
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import progress_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

MESSAGES = 200_000
CLOSE, YEAR = "within 10 minutes", "over a year"
# Seconds from publishing to the first due time, and from the first to the last.
DUE_S = {CLOSE: (48 * 3600.0, 600.0), YEAR: (48 * 3600.0, 363 * 86_400.0)}
# Messages of the warm-up, due close together in both cases: they warm the job's code, and few of them are sealed.
WARM_UP = 100_000
TIMEOUT_S = 1800.0
_METADATA = "part=metadata-"


def measure(stand: Stand, scale: float) -> Outcome:
    """For both cases: let a warm job accept and seal messages that were published in one instant, and restart it."""
    count = int(MESSAGES * scale)
    # In a trial, fewer messages must be sealed too.
    fewer = [f"bucket.max_messages={count // 10}"] if scale < 1 else []
    figures = {case: _case(stand, f"spread-{number}", case, count, *fewer) for number, case in enumerate(DUE_S)}
    series = {case: [[0.0, of_case["seconds"]], [0.0, float(count)]] for case, of_case in figures.items()}
    return Outcome("spread", f"{count:,} messages sealed at once", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: the cost depends little on the spread, and nothing is delivered."""

    def of_close(name: str) -> float | None:
        return ratio(figure(figures, YEAR, name), figure(figures, CLOSE, name))

    return [
        Aim("messages/s, of those close together", of_close("messages_per_s"), 0.5, at_least=True),
        Aim("segments, of those close together", of_close("segments"), 4.0),
        Aim("files, of those close together", of_close("files"), 4.0),
        Aim("metadata of a message on disk", figure(figures, YEAR, "metadata_bytes_per_message"), 100, "bytes"),
        Aim("metadata of a message in memory", figure(figures, YEAR, "driver_bytes_per_message"), 10, "bytes"),
        *(
            Aim(f"{what}, {case}", figure(figures, case, name), 0)
            for case in DUE_S
            for what, name in (("came out", "came_out"), ("dead letters", "dead_letters"), ("not found", "lost"))
        ),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the number of committed messages over time."""
    return progress_figure(outcome)


def _case(stand: Stand, name: str, case: str, count: int, *overrides: str) -> dict[str, Any]:
    """Seal `count` messages. Return the rate, the contents of the table, and the contents that a restart recovers."""
    application = stand.application(name, *overrides)
    job = stand.job(application)
    _accept(stand, application, job, f"{name}-warm-up", min(WARM_UP, count), DUE_S[CLOSE])
    before, files_before = job.batches.messages, _live_files(application)
    say(f"{name}: {count:,} messages due {case}")
    _accept(stand, application, job, name, count, DUE_S[case])
    batches = job.intake(before)
    start_s, end_s = batches[0].planned_s, batches[-1].done_s
    lines = [line for number, line in job.batch_lines().items() if number >= batches[0].batch_id]
    files = {path: size for path, size in _live_files(application).items() if path not in files_before}
    metadata_bytes = sum(size for path, size in files.items() if path.startswith(_METADATA))
    measured: dict[str, Any] = {
        "messages": count,
        "seconds": round(end_s - start_s, 2),
        "messages_per_s": round((batches[-1].end - before) / (end_s - start_s)),
        "batches": len(batches),
        "sealed": sum(line.sealed for line in lines),
        "segments": sum(line.segments for line in lines),
        "files": len(files),
        "metadata_bytes_per_message": round(metadata_bytes / count, 2),
        **job.usage.between(start_s, end_s),
        **stand.came_out(application),
    }
    sealed = job.sealed()
    job.stop()
    say(f"{name}: {measured['messages_per_s']:,}/s; the job starts again")
    job.start()
    return measured | {"start_s": round(job.start_s, 1), **_recovered(job, sealed)}


def _recovered(job: Job, sealed: int) -> dict[str, float]:
    """Compare what the restart recovered with the `sealed` messages; return also its size in the driver's memory."""
    recovered = job.recovered()
    if not recovered.get("messages"):
        return {}
    return {
        "lost": sealed - recovered["messages"],
        "recovered_segments": recovered["segments"],
        "driver_bytes_per_message": round(recovered["metadata_bytes"] / recovered["messages"], 3),
    }


def _accept(
    stand: Stand, application: Application, job: Job, transactional_id: str, count: int, due_s: tuple[float, float]
) -> None:
    """Publish `count` messages in one transaction, and wait until the job has committed all of them.

    `due_s` is the time to the first due time, and from the first to the last.
    """
    before = job.batches.messages
    options = {"transactional.id": transactional_id}
    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS, options)
    publisher.preload_at_once(far_loads(count, *due_s), any_delay)
    publisher.close()
    # The transaction marker takes an offset in each partition.
    job.wait_for_messages(before + count + PARTITIONS, TIMEOUT_S)


def _live_files(application: Application) -> dict[str, int]:
    """Return the bytes of each live file of the application's tables."""
    return {path: size for table in delta_tables(application.folder) for path, size in live_files(table).items()}
