"""What `scale` measures of a job that has little to do, with nothing waiting and with millions waiting alike."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.footprint import delta_tables, live_files, used_bytes
from benchmarks.job import Application, Job
from benchmarks.lateness import under_load
from benchmarks.restart import restart_s
from benchmarks.scale_runs import Figures
from benchmarks.stand import Stand
from benchmarks.usage import BROKER, Memory
from benchmarks.waiting import say, wait_until

SETTLE_S, IDLE_S, LOAD_S, RESTARTS = 20.0, 30.0, 60.0, 3
SHORTEST_S = 5.0
POINTS = 300
# Of a series: s since `begun_s`, messages in committed batches, MB.
COLUMNS = ("at_s", "held", "rss_mb_jvm", "rss_mb_python", "rss_mb_job", "pss_mb_job")


@dataclass
class Phases:
    """Measures `job` from `begun_s` (epoch s), while `waiting` messages wait; `share` shortens each phase.

    A phase that fails leaves `failed_<phase>` with the reason among the figures: it must not cost the hour that the
    others are built on.
    """

    stand: Stand
    application: Application
    job: Job
    waiting: int
    begun_s: float
    share: float
    series: list[list[float]] = field(default_factory=list, init=False)

    def measure(self, warm_up_s: float) -> Figures:
        """Go through all phases, and return their figures. The load before lateness counts takes `warm_up_s`."""
        phases: dict[str, Callable[[], Figures]] = {
            "idle": self._idle,
            "disk": self._disk,
            "lateness": lambda: self._lateness(warm_up_s),
            "memory": self._peak,
            "restart": self._restart,
        }
        found: Figures = {}
        for name, phase in phases.items():
            try:
                found |= phase()
            except Exception as problem:
                traceback.print_exc()
                found[f"failed_{name}"] = str(problem).partition("\n")[0] or repr(problem)
        return found

    def _idle(self) -> Figures:
        """Triggers, CPU (cores) and steady memory (MB, median) while the job does nothing but wait."""
        settle_s, idle_s = self._seconds(SETTLE_S), self._seconds(IDLE_S)
        say(f"{self.application.name}: {settle_s:.0f} s to settle, {idle_s:.0f} s idle")
        start_s = time.time() + settle_s
        end_s = start_s + idle_s
        wait_until(lambda: time.time() >= end_s, settle_s + idle_s + 1, "the end of the rest", self.job.check)
        usage = self.job.usage.between(start_s, end_s)
        found = self.job.triggers(start_s, end_s) | {name: cpu for name, cpu in usage.items() if name[:3] == "cpu"}
        steady = _megabytes(self.job.usage.memory_between(start_s, end_s))
        return {f"idle_{name}": value for name, value in found.items()} | {
            f"{name}_steady": round(float(np.median(values)), 1) for name, values in steady.items()
        }

    def _disk(self) -> Figures:
        """Bytes on the local disk: of the whole storage, of the tables' folders, of the files the tables name."""
        if not self.waiting:
            return {}
        tables = delta_tables(self.application.folder)
        live = [size for table in tables for size in live_files(table).values()]
        sizes = {
            "disk_storage": used_bytes(self.application.folder),
            "disk_tables": sum(used_bytes(table) for table in tables),
            "disk_live": sum(live),
        }
        found: Figures = {"live_files": len(live)}
        for name, size in sizes.items():
            found |= {f"{name}_mb": round(size / 2**20, 1), f"{name}_bytes_per_message": round(size / self.waiting, 1)}
        return found

    def _lateness(self, warm_up_s: float) -> Figures:
        """Lateness and what the load costs, as `benchmarks/lateness.py` has them."""
        _, found = under_load(self.stand, self.application, self.job, self._seconds(warm_up_s), self._seconds(LOAD_S))
        return {f"lateness_{name}": value for name, value in found.items() if not name.startswith("mb_")}

    def _peak(self) -> Figures:
        """Memory from the beginning to here (MB, largest), and the series of it."""
        samples = self.job.usage.memory_between(self.begun_s, time.time())
        sizes = _megabytes(samples)
        at_s = np.array([sample.at_s for sample in samples])
        batches = self.job.batches.between(self.begun_s, time.time())
        held = np.interp(at_s, [batch.committed_s for batch in batches], [batch.end for batch in batches])
        columns = {"at_s": at_s - self.begun_s, "held": np.minimum(held, self.waiting), **sizes}
        self.series = [_thinned(columns[name]) for name in COLUMNS]
        return {f"{name}_peak": round(float(values.max()), 1) for name, values in sizes.items()}

    def _restart(self) -> Figures:
        """Restarts after `kill -9`, s; and the metadata that the job says it holds then."""
        seconds = [restart_s(self.stand, self.application, self.job, attempt) for attempt in range(RESTARTS)]
        found: Figures = {"restart_s": round(float(np.median(seconds)), 2), "restarts": np.round(seconds, 2).tolist()}
        recovered = self.job.recovered()
        found |= {f"recovered_{name}": value for name, value in recovered.items()}
        if recovered.get("messages"):
            found["metadata_bytes_per_message"] = round(recovered["metadata_bytes"] / recovered["messages"], 4)
        return found

    def _seconds(self, full_s: float) -> float:
        return max(SHORTEST_S, full_s * self.share)


def _megabytes(samples: list[Memory]) -> dict[str, np.ndarray]:
    """Return RSS and PSS of JVM, Python and both over `samples`, MB. Shared pages count for each process in RSS."""
    found: dict[str, np.ndarray] = {}
    for kind in ("rss", "pss"):
        sizes = [getattr(sample, kind) for sample in samples]
        jvm = np.array([at.get("jvm", 0) for at in sizes]) / 2**20
        both = np.array([sum(size for role, size in at.items() if role != BROKER) for at in sizes]) / 2**20
        found |= {f"{kind}_mb_jvm": jvm, f"{kind}_mb_python": both - jvm, f"{kind}_mb_job": both}
    return found


def _thinned(values: np.ndarray) -> list[float]:
    """Return at most `POINTS` values, the largest of each stretch."""
    stretches = np.array_split(values, min(POINTS, len(values)))
    return [round(float(stretch.max()), 1) for stretch in stretches]
