"""Which faults strike when: a plan that a seed gives, and the hands that do it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from benchmarks.cluster import Cluster
from streaming.local.broker import EmbeddedBroker

# Seconds of quiet after a fault. A killed driver is given the time to come up; else nothing but restarts would be seen.
_QUIET_S = (8.0, 22.0)
_QUIET_AFTER_DRIVER_S = (45.0, 60.0)


@dataclass(frozen=True)
class Fault:
    """One fault: when it strikes, in seconds from the start, what, and how long it lasts."""

    at_s: float
    kind: str
    lasts_s: float


def plan_faults(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a campaign, the same ones for the same arguments."""
    chance = random.Random(seed)
    kinds = {"driver-kill": 0.0, "driver-pause": 25.0, "broker-kill": 6.0, "broker-pause": 15.0, "worker-kill": 5.0,
             "worker-pause": 15.0}  # fmt: skip
    faults: list[Fault] = []
    at_s = chance.uniform(3.0, 15.0)
    rounds: list[str] = []
    while at_s < seconds:
        # Each kind once in six, in any order: by lots alone a short campaign could miss one.
        rounds = rounds or chance.sample(sorted(kinds), len(kinds))
        kind = rounds.pop()
        lasts_s = chance.uniform(min(1.0, kinds[kind]), kinds[kind])
        faults.append(Fault(round(at_s, 1), kind, round(lasts_s, 1)))
        at_s += lasts_s + chance.uniform(*(_QUIET_AFTER_DRIVER_S if kind == "driver-kill" else _QUIET_S))
    return faults


class Hands:
    """Does what a plan says to a broker, a cluster's workers, and a driver that somebody else starts again."""

    def __init__(
        self, broker: EmbeddedBroker, cluster: Cluster, driver: Callable[[], psutil.Process | None], seed: int
    ) -> None:
        """`driver` returns the running driver's process, or None while there is none."""
        self._broker, self._cluster, self._driver = broker, cluster, driver
        self._chance = random.Random(seed)

    def strike(self, fault: Fault) -> float:
        """Do it, and undo it after its time; return when it struck (epoch s)."""
        part, _, deed = fault.kind.partition("-")
        worker = self._chance.choice(self._cluster.workers)
        if part == "driver":
            process = self._driver()
        else:
            process = psutil.Process(self._broker.pid) if part == "broker" else self._cluster.process(worker)
        struck_s = time.time()
        if process is None:
            raise RuntimeError("there is no driver to strike")
        if deed == "pause":
            _pause(process, fault.lasts_s)
        elif part == "driver":
            _kill(process)
        elif part == "broker":
            self._broker.kill()
            time.sleep(fault.lasts_s)
            self._broker.start()
        else:
            self._cluster.kill_worker(worker)
            time.sleep(fault.lasts_s)
            self._cluster.start_worker(worker)
        return struck_s


def _kill(process: psutil.Process) -> None:
    # Not `kill_tree` of the service: a supervisor waits for the process, and kills of its own must not race with it.
    family = [process, *process.children(recursive=True)]
    for each in family:
        _quietly(each.suspend)
    for each in family:
        _quietly(each.kill)


def _pause(process: psutil.Process, seconds: float) -> None:
    family = [process, *process.children(recursive=True)]
    for each in family:
        _quietly(each.suspend)
    time.sleep(seconds)
    for each in reversed(family):
        _quietly(each.resume)


def _quietly(signal: Callable[[], None]) -> None:
    try:
        signal()
    except psutil.NoSuchProcess:
        # It ended by itself between the look and the signal.
        return


def tally(faults: Iterable[Fault]) -> dict[str, int]:
    """Count the faults by kind."""
    counts: dict[str, int] = {}
    for fault in faults:
        counts[fault.kind] = counts.get(fault.kind, 0) + 1
    return dict(sorted(counts.items()))
