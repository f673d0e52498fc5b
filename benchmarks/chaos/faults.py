"""Plans the faults of a campaign from a seed, and injects them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import psutil

from benchmarks.cluster import Cluster
from benchmarks.release_processes import is_forwarder, is_release
from streaming.local.broker import EmbeddedBroker

# Seconds without a fault after each fault. A killed driver gets time to restart; otherwise it would hardly ever run.
_QUIET_S = (8.0, 22.0)
_QUIET_AFTER_DRIVER_S = (45.0, 60.0)
_NO_CHILD_S = 30.0


@dataclass(frozen=True)
class Fault:
    """One fault: its start in seconds from the beginning, its kind, and its duration in seconds."""

    at_s: float
    kind: str
    lasts_s: float


# The kinds of faults on a cluster, each with its longest duration in seconds.
ON_A_CLUSTER = {
    "driver-kill": 0.0, "driver-pause": 25.0, "release-kill": 0.0, "release-pause": 15.0, "forward-kill": 0.0,
    "forward-pause": 15.0, "broker-kill": 6.0, "broker-pause": 15.0, "worker-kill": 5.0, "worker-pause": 15.0,
}  # fmt: skip


def plan_faults(
    seed: int,
    seconds: float,
    kinds: Mapping[str, float] = ON_A_CLUSTER,
    restarting: Collection[str] = ("driver-kill",),
) -> list[Fault]:
    """Return the faults of a campaign of `seconds`; the same arguments give the same faults.

    After each of the kinds `restarting`, a driver gets the time to start.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    at_s = chance.uniform(3.0, 15.0)
    rounds: list[str] = []
    while at_s < seconds:
        # Each kind once in every round, in random order: a short campaign must not miss a kind.
        rounds = rounds or chance.sample(sorted(kinds), len(kinds))
        kind = rounds.pop()
        lasts_s = chance.uniform(min(1.0, kinds[kind]), kinds[kind])
        faults.append(Fault(round(at_s, 1), kind, round(lasts_s, 1)))
        at_s += lasts_s + chance.uniform(*(_QUIET_AFTER_DRIVER_S if kind in restarting else _QUIET_S))
    return faults


class FaultInjector:
    """Kills and pauses a broker, the workers of a cluster, and a driver that a supervisor restarts.

    It also kills and pauses the release process and the forwarder that the driver has started. The driver starts a
    killed one again.
    """

    def __init__(
        self, broker: EmbeddedBroker, cluster: Cluster, driver: Callable[[], psutil.Process | None], seed: int
    ) -> None:
        """`driver` returns the running driver's process, or None while no driver runs."""
        self._broker, self._cluster, self._driver = broker, cluster, driver
        self._chance = random.Random(seed)

    def inject(self, fault: Fault) -> float:
        """Inject the fault, and undo it after its duration; return when it began (epoch s)."""
        target, _, action = fault.kind.partition("-")
        worker = self._chance.choice(self._cluster.workers)
        if target == "driver":
            process = self._driver()
        elif target == "release":
            process = self._child(is_release)
        elif target == "forward":
            process = self._child(is_forwarder)
        else:
            process = psutil.Process(self._broker.pid) if target == "broker" else self._cluster.process(worker)
        begun_s = time.time()
        if process is None:
            raise RuntimeError(f"there is no {target} process")
        if action == "pause":
            pause(process)
            time.sleep(fault.lasts_s)
            resume(process)
        elif target in ("driver", "release", "forward"):
            kill(process)
        elif target == "broker":
            self._broker.kill()
            time.sleep(fault.lasts_s)
            self._broker.start()
        else:
            self._cluster.kill_worker(worker)
            time.sleep(fault.lasts_s)
            self._cluster.start_worker(worker)
        return begun_s

    def _child(self, is_wanted: Callable[[psutil.Process], bool]) -> psutil.Process | None:
        """Return a process that the driver has started. A driver that has just been started may have none yet."""
        deadline_s = time.monotonic() + _NO_CHILD_S
        while time.monotonic() < deadline_s:
            if (driver := self._driver()) is not None and (found := _children(driver, is_wanted)):
                return self._chance.choice(found)
            time.sleep(0.1)
        return None


def _children(driver: psutil.Process, is_wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    try:
        return [child for child in driver.children(recursive=True) if is_wanted(child)]
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process) -> None:
    """Send SIGKILL to the process and its descendants; its parent waits for it."""
    # Not the service's `kill_tree`: the supervisor waits for the process, and may reap it at any moment.
    family = pause(process)
    for each in family:
        _quietly(each.kill)


def pause(process: psutil.Process) -> list[psutil.Process]:
    """Stop the process and its descendants, and return them."""
    family = [process, *process.children(recursive=True)]
    for each in family:
        _quietly(each.suspend)
    return family


def resume(process: psutil.Process) -> None:
    """Let the process and its descendants go on: these first."""
    for each in reversed([process, *process.children(recursive=True)]):
        _quietly(each.resume)


def _quietly(signal: Callable[[], None]) -> None:
    try:
        signal()
    except psutil.NoSuchProcess:
        # The process ended by itself before the signal.
        return


def tally(faults: Iterable[Fault]) -> dict[str, int]:
    """Count the faults by kind."""
    counts: dict[str, int] = {}
    for fault in faults:
        counts[fault.kind] = counts.get(fault.kind, 0) + 1
    return dict(sorted(counts.items()))
