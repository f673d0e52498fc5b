"""The campaign of contention: several drivers and three release processes of one application.

`python -m benchmarks.chaos contention --minutes 30 --seed 7` starts a broker, three release processes, and a driver.
500 messages/s with mixed delays are published, while these are killed, stopped and paused at random moments, and more
drivers are started than may run. Messages that were staged before a fault must leave on time, unless the fault struck
their release process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.chaos.campaign import LOW_LIMITS, Campaign, contract_aims, counts_of, problems_of
from benchmarks.chaos.drivers import Drivers
from benchmarks.chaos.faults import Fault, plan_faults, tally
from benchmarks.chaos.judged_load import JudgedLoad
from benchmarks.chaos.load import RATE
from benchmarks.chaos.releases import Releases
from benchmarks.outcome import Aim, Outcome
from benchmarks.release_processes import shard_of
from benchmarks.stand import Stand
from benchmarks.waiting import say

NAME = "contention"
RELEASES = ("a", "b", "c")
# With its longest duration in seconds. A driver that is paused loses its lease to a rival, and a release process that
# is paused or away its shards to the others.
KINDS = {
    "driver-kill": 0.0, "driver-pause": 30.0, "driver-rival": 0.0, "release-kill": 0.0, "release-leave": 25.0,
    "release-pause": 60.0, "release-stop": 10.0,
}  # fmt: skip
_RESTARTING = ("driver-kill", "driver-pause", "driver-rival")
_P99_MS = 100.0
# A shard for each of the four output partitions, so that every release process has some.
_SETTINGS = (*LOW_LIMITS, "release.processes=0", "bucket.shards=4")


@dataclass(frozen=True)
class Strike:
    """A fault, when it began (epoch s), and the shards of the release process that it struck."""

    fault: Fault
    at_s: float
    shards: frozenset[int]


def campaign(stand: Stand, seed: int, minutes: float, overrides: tuple[str, ...] = ()) -> Campaign:
    """Run a campaign of `minutes` with the faults of `seed`. `overrides` are additional settings of the job."""
    seconds = minutes * 60
    plan = plan_faults(seed, seconds, KINDS, _RESTARTING)
    say(f"seed {seed}: {len(plan)} faults in {minutes:g} minutes: {tally(plan)}")
    with ExitStack() as stack:
        judged = stack.enter_context(JudgedLoad(stand, NAME, seed, seconds, *_SETTINGS, *overrides))
        application = judged.application
        releases = stack.enter_context(Releases(RELEASES, application.overrides, application.folder))
        drivers = Drivers(stand.folder / f"{NAME}-drivers", application.overrides, at_once=2)
        stack.callback(drivers.stop)
        drivers.start()
        drivers.wait_until_one_runs()
        injector = _Injector(drivers, releases, seed)
        injected = judged.strike(plan, injector.inject)
        releases.check()
        drivers.stop()
        judged.finish()
        strikes = [Strike(fault, at_s, shards) for (fault, at_s), shards in zip(injected, injector.struck, strict=True)]
        late = _lateness_ms(judged, strikes, application.settings.bucket.shards)
        problems = [*problems_of(judged), *drivers.problems]
        return Campaign(problems, _outcome(seed, minutes, judged, late, drivers))


class _Injector:
    """Injects the faults; `struck` has the shards of the release process that each struck, in order."""

    def __init__(self, drivers: Drivers, releases: Releases, seed: int) -> None:
        self._drivers, self._releases = drivers, releases
        self._chance = random.Random(seed)
        self.struck: list[frozenset[int]] = []

    def inject(self, fault: Fault) -> float:
        """Inject the fault, and undo it after its duration; return when it began (epoch s)."""
        self._releases.check()
        release = self._chance.choice(self._releases.names)
        target, _, action = fault.kind.partition("-")
        self.struck.append(frozenset(self._releases.shards(release) if target == "release" else ()))
        begun_s = time.time()
        if fault.kind == "driver-kill":
            self._drivers.kill()
        elif fault.kind == "driver-pause":
            self._drivers.pause(fault.lasts_s)
        elif fault.kind == "driver-rival":
            self._drivers.start_rival()
        elif action in ("kill", "leave"):
            self._releases.kill(release, fault.lasts_s)
        elif action == "stop":
            self._releases.stop(release, fault.lasts_s)
        else:
            self._releases.pause(release, fault.lasts_s)
        return begun_s


def _lateness_ms(judged: JudgedLoad, strikes: Sequence[Strike], shards: int) -> dict[str, list[int]]:
    """Return the lateness of messages that were staged before a fault, and due between it and the next.

    The keys are the kinds of fault. Messages on the shards that the fault struck are separate: `<kind>, struck`.
    """
    begun_ms = np.array([strike.at_s * 1000 for strike in strikes])
    late: dict[str, list[int]] = {}
    for record in judged.received:
        message = judged.published.get(record.id)
        if message is None or message.made_due:
            continue
        last = int(np.searchsorted(begun_ms, message.due_ms)) - 1
        staged_ms = judged.acceptance.staged_ms(message)
        if last < 0 or staged_ms is None or staged_ms >= begun_ms[last]:
            continue
        strike = strikes[last]
        struck = shard_of(record.topic, record.partition, shards) in strike.shards
        name = f"{strike.fault.kind}, struck" if struck else strike.fault.kind
        late.setdefault(name, []).append(record.received_ms - message.due_ms)
    return late


def _outcome(seed: int, minutes: float, judged: JudgedLoad, late: dict[str, list[int]], drivers: Drivers) -> Outcome:
    spared = [lateness for kind, values in late.items() if "struck" not in kind for lateness in values]
    figures: dict[str, dict[str, Any]] = {
        "campaign": {"seed": seed, "minutes": minutes}
        | {"starts of drivers": drivers.starts, "drivers that gave up": drivers.gave_up}
        | counts_of(judged),
        "lateness of what was staged before a fault, ms": {
            f"{kind}, {name} of {len(values):,}": round(float(np.percentile(values, share)), 1)
            for kind, values in sorted(late.items())
            for name, share in (("p50", 50), ("p99", 99), ("longest", 100))
        },
    }
    aims = [
        *contract_aims(judged),
        Aim(
            "p99 of what was staged before a fault that did not strike its release process",
            float(np.percentile(spared, 99)) if spared else None,
            _P99_MS,
            "ms",
        ),
        Aim("drivers that ended neither by a kill nor because another had the lease", len(drivers.problems), 0),
    ]
    about = f"two drivers and three release processes, {minutes:g} minutes of {RATE} messages/s; seed {seed}"
    return Outcome(NAME, about, aims, figures)
