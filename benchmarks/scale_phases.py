"""The phases in which `scale` measures a lightly loaded job, with nothing waiting and with millions waiting."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.aims import FAULTS
from benchmarks.footprint import delta_tables, live_files, used_bytes
from benchmarks.job import Application, Job
from benchmarks.lateness import light_traffic
from benchmarks.restart import TIMEOUT_S, asked_restart, first_answer_s, restart_s
from benchmarks.scale_runs import CaseFigures
from benchmarks.sealed import sealed_traffic
from benchmarks.stand import Stand
from benchmarks.traffic import run_through
from benchmarks.usage import Memory, job_total
from benchmarks.waiting import say, wait_until

SETTLE_S, IDLE_S, RESTARTS = 20.0, 30.0, 3
SHORTEST_S = 5.0
POINTS = 300
# Numbers reserved for each load: more than any load has messages, and all together fit into a value's digits.
NUMBERS = 1_000_000_000
# The columns of a series: s since `begun_s`, messages in committed batches, MB.
COLUMNS = ("at_s", "ingested", "rss_mb_jvm", "rss_mb_python", "rss_mb_job", "pss_mb_job")


@dataclass
class Phases:
    """Measures `job`, which keeps running; `share` shortens each phase.

    The reference and the loaded case go through the same phases of the same length, in the same warm process. A phase
    that fails adds `failed_<phase>` with the reason to the figures, so that an hour of other measurements is not lost.
    """

    stand: Stand
    application: Application
    job: Job
    share: float
    _next_number: int = field(default=0, init=False)

    def warm_up(self) -> CaseFigures:
        """Send messages through sealed buckets until nothing waits; return their faults."""
        return self._guarded("warm_up", self._warm_up)

    def none_waiting(self, begun_s: float) -> CaseFigures:
        """Measure with nothing waiting. The peak of memory counts from `begun_s` (epoch s)."""
        return self._all({"idle": self._idle, "lateness": self._lateness, "memory": lambda: self._peak(begun_s)})

    def waiting(self, begun_s: float, count: int, disk_before: CaseFigures, sealed_ids: Sequence[str]) -> CaseFigures:
        """Measure with `count` messages waiting; the last phases restart the job.

        `disk_before` is from `disk`. Two of the messages have the `sealed_ids`.
        """
        return self._all(
            {
                "idle": self._idle,
                "disk": lambda: _disk_of(count, disk_before, self.disk()),
                "lateness": self._lateness,
                "memory": lambda: self._peak(begun_s),
                "restart": self._restart,
                "requests": lambda: self._requests(*sealed_ids),
            }
        )

    def disk(self) -> CaseFigures:
        """Return bytes on the local disk: of all storage, of the tables' folders, and of the tables' live files."""
        tables = delta_tables(self.application.folder)
        live = [size for table in tables for size in live_files(table).values()]
        return {
            "disk_storage": used_bytes(self.application.folder),
            "disk_tables": sum(used_bytes(table) for table in tables),
            "disk_live": sum(live),
            "live_files": len(live),
        }

    def series(self, begun_s: float, before: int, count: int) -> list[list[float]]:
        """Return `COLUMNS` from `begun_s` (epoch s) to now; `ingested` counts up to `count` messages after `before`."""
        samples = self.job.usage.memory_between(begun_s, time.time())
        at_s = np.array([sample.at_s for sample in samples])
        batches = self.job.batches.between(begun_s, time.time())
        ingested = np.interp(at_s, [batch.committed_s for batch in batches], [batch.end - before for batch in batches])
        columns = {"at_s": at_s - begun_s, "ingested": np.clip(ingested, 0, count), **_megabytes(samples)}
        return [_thinned(columns[name]) for name in COLUMNS]

    def _all(self, phases: dict[str, Callable[[], CaseFigures]]) -> CaseFigures:
        figures: CaseFigures = {}
        for name, phase in phases.items():
            figures |= self._guarded(name, phase)
        return figures

    def _guarded(self, name: str, phase: Callable[[], CaseFigures]) -> CaseFigures:
        try:
            return phase()
        except Exception as problem:  # noqa: BLE001, the other measurements are worth their time
            traceback.print_exc()
            return {f"failed_{name}": str(problem).partition("\n")[0] or repr(problem)}

    def _warm_up(self) -> CaseFigures:
        traffic = sealed_traffic(self.share, self._numbers())
        _, figures = run_through(self.stand, self.application, self.job, traffic)
        return {f"warm_up_{name}": figures[name] for name in ("published", *FAULTS)}

    def _numbers(self) -> int:
        """Return the first number of a range that no other load of this job uses."""
        self._next_number += NUMBERS
        return self._next_number

    def _idle(self) -> CaseFigures:
        """Measure triggers, CPU (cores) and steady memory (MB, median) of the idle job."""
        settle_s, idle_s = self._seconds(SETTLE_S), self._seconds(IDLE_S)
        say(f"{self.application.name}: {settle_s:.0f} s to settle, {idle_s:.0f} s idle")
        start_s = time.time() + settle_s
        end_s = start_s + idle_s
        wait_until(lambda: time.time() >= end_s, settle_s + idle_s + 1, "the end of the idle phase", self.job.check)
        usage = self.job.usage.between(start_s, end_s)
        figures = self.job.triggers(start_s, end_s) | {name: cpu for name, cpu in usage.items() if name[:3] == "cpu"}
        steady = _megabytes(self.job.usage.memory_between(start_s, end_s))
        return {f"idle_{name}": value for name, value in figures.items()} | {
            f"{name}_steady": round(float(np.median(values)), 1) for name, values in steady.items()
        }

    def _lateness(self) -> CaseFigures:
        """Measure lateness and the cost of the load, like `benchmarks/lateness.py`."""
        traffic = light_traffic(self.share, self._numbers())
        _, figures = run_through(self.stand, self.application, self.job, traffic)
        return {f"lateness_{name}": value for name, value in figures.items() if not name.startswith("mb_")}

    def _peak(self, begun_s: float) -> CaseFigures:
        """Return the largest memory (MB) from `begun_s` until now."""
        sizes = _megabytes(self.job.usage.memory_between(begun_s, time.time()))
        return {f"{name}_peak": round(float(values.max()), 1) for name, values in sizes.items()}

    def _restart(self) -> CaseFigures:
        """Measure restarts after `kill -9` (s), and the size of the metadata that the job logs after them."""
        seconds = [restart_s(self.stand, self.application, self.job, attempt) for attempt in range(RESTARTS)]
        figures: CaseFigures = {
            "restart_s": round(float(np.median(seconds)), 2),
            "restarts": np.round(seconds, 2).tolist(),
        }
        recovered = self.job.recovered()
        figures |= {f"recovered_{name}": value for name, value in recovered.items()}
        if recovered.get("messages"):
            figures["metadata_bytes_per_message"] = round(recovered["metadata_bytes"] / recovered["messages"], 4)
        return figures

    def _requests(self, first: str, second: str) -> CaseFigures:
        """Measure the first request of the job, and a restart with a request (s)."""
        figures = {"first_answer_s": round(first_answer_s(self.application, first), 2)}
        # Otherwise the kill would strike the batch with this request.
        self.job.wait_for_messages(sum(self.stand.end_offsets(self.application.input)), TIMEOUT_S)
        return figures | asked_restart(self.stand, self.application, self.job, RESTARTS, second)

    def _seconds(self, full_s: float) -> float:
        return max(SHORTEST_S, full_s * self.share)


def _disk_of(count: int, before: CaseFigures, now: CaseFigures) -> CaseFigures:
    """Return the disk space that `count` messages have added, in MB and in bytes for each message."""
    added = {name: now[name] - before[name] for name in now}
    figures: CaseFigures = {"live_files": added.pop("live_files")}
    for name, size in added.items():
        figures |= {f"{name}_mb": round(size / 2**20, 1), f"{name}_bytes_per_message": round(size / count, 1)}
    return figures


def _megabytes(samples: list[Memory]) -> dict[str, np.ndarray]:
    """Return RSS and PSS (MB) of JVM, Python and both, by sample. RSS counts shared pages once for each process."""
    figures: dict[str, np.ndarray] = {}
    for kind in ("rss", "pss"):
        sizes = [getattr(sample, kind) for sample in samples]
        jvm = np.array([at.get("jvm", 0) for at in sizes]) / 2**20
        both = np.array([job_total(at) for at in sizes]) / 2**20
        figures |= {f"{kind}_mb_jvm": jvm, f"{kind}_mb_python": both - jvm, f"{kind}_mb_job": both}
    return figures


def _thinned(values: np.ndarray) -> list[float]:
    """Return at most `POINTS` values: the largest of each stretch."""
    stretches = np.array_split(values, min(POINTS, len(values)))
    return [round(float(stretch.max()), 1) for stretch in stretches]
