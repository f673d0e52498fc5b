"""The campaign on a cluster: random faults of driver, workers, broker, release process and forwarder.

`python -m benchmarks.chaos --minutes 30 --seed 7` starts a broker, a Spark cluster with two workers, and the job, which
a supervisor restarts whenever it ends. 500 messages/s with mixed delays are published, with cancels, replacements
and deliver-now requests, and next to them names and schedules, while driver, workers, broker, release process and
forwarder are killed and paused at random moments. The exit code is 0 only if no message is lost, doubled, early,
altered, misplaced or out of order, each answer agrees with what came out, each kind of load has occurred, and at least
half of the messages could be checked for order.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.chaos.drivers import Drivers
from benchmarks.chaos.faults import Fault, FaultInjector, plan_faults, tally
from benchmarks.chaos.gaps import Gap, gaps_s
from benchmarks.chaos.judged_load import JudgedLoad
from benchmarks.chaos.load import RATE
from benchmarks.cluster import Cluster
from benchmarks.outcome import Aim, Outcome
from benchmarks.release_processes import shard_of
from benchmarks.stand import Stand
from benchmarks.waiting import say
from conf.instants import instant
from streaming.judge.verdict import LEAST_CHECKED

NAME = "chaos"
# A record that was committed before a kill is received within this time after it.
_IN_FLIGHT_S = 1.0
# Seconds from a fault to the next delivery, if no other fault struck meanwhile. Staged messages come out without a
# driver or a worker, but all these processes share the machine.
_LIMITS_S = {"driver-kill": 10.0, "release-kill": 5.0, "forward-kill": 5.0, "worker-kill": 5.0}
# Low limits, so that the job seals, loads, merges and deletes.
LOW_LIMITS = (
    "bucket.max_messages=3000",
    "bucket.fan_in=4",
)
_SETTINGS = (
    *LOW_LIMITS,
    "spark.spark.driver.host=127.0.0.1",
    "spark.spark.executor.cores=1",
    "spark.spark.cores.max=2",
    "spark.spark.executor.memory=700m",
    f"spark.spark.pyspark.python={sys.executable}",
)


class Campaign(NamedTuple):
    """The result of a campaign.

    - `problems`: a sentence for each violation of the contract, and for each reason why it is unproven
    - `outcome`: the judge's verdict and the timings, in the form of a benchmark
    """

    problems: list[str]
    outcome: Outcome


def campaign(stand: Stand, seed: int, minutes: float, overrides: tuple[str, ...] = ()) -> Campaign:
    """Run a campaign of `minutes` with the faults of `seed`. `overrides` are additional settings of the job."""
    seconds = minutes * 60
    plan = plan_faults(seed, seconds)
    say(f"seed {seed}: {len(plan)} faults in {minutes:g} minutes: {tally(plan)}")
    with ExitStack() as stack:
        cluster = Cluster(stand.folder)
        stack.callback(cluster.stop)
        cluster.start()
        settings = (*_SETTINGS, f"spark.spark.master={cluster.url}", *overrides)
        judged = stack.enter_context(JudgedLoad(stand, NAME, seed, seconds, *settings))
        drivers = Drivers(stand.folder / NAME, judged.application.overrides)
        stack.callback(drivers.stop)
        drivers.start()
        drivers.wait_until_one_runs()
        injected = judged.strike(plan, FaultInjector(stand.broker, cluster, drivers.process, seed).inject)
        drivers.stop()
        judged.finish()
        received_s = _received_s(judged)
        problems = [*problems_of(judged), *drivers.problems]
        return Campaign(problems, _outcome(seed, minutes, judged, injected, received_s, drivers.starts))


def problems_of(judged: JudgedLoad) -> list[str]:
    """Return what broke the contract, or leaves it unproven, a sentence each."""
    return [
        *judged.verdict.problems(),
        *judged.wrong_answers,
        *judged.wrong_names,
        *judged.schedules_judged.problems,
        *(f"no {what}: the campaign proves nothing about them" for what in _absent(judged)),
    ]


def counts_of(judged: JudgedLoad) -> dict[str, int]:
    """Return counts: messages, other records, faults of each kind, and messages that were held to their order."""
    verdict = judged.verdict
    faults = {str(fault): count for fault, count in verdict.faults.items()}
    ways = {"held to order": verdict.order_checked, "taken by forwarders": verdict.forwarded}
    return {"messages": verdict.published} | load_of(judged) | faults | ways


def load_of(judged: JudgedLoad) -> dict[str, int]:
    """Return how much there was of each kind of load: a campaign proves nothing about a kind that has not occurred."""
    load = judged.load
    return {
        "cancel requests": load.cancels,
        "replacements": load.replacements,
        "refused": judged.refused,
        "cancelled or refused": load.published - load.requests - judged.verdict.published,
        "deliver-now requests": load.deliveries,
        "messages made due at once": judged.made_due,
        "messages with names that came out": len(judged.names.received),
        "cancels by name": judged.names.cancels,
        **judged.schedules_judged.counts,
    }


def _absent(judged: JudgedLoad) -> list[str]:
    return [what for what, count in load_of(judged).items() if not count]


def contract_aims(judged: JudgedLoad) -> list[Aim]:
    """Return an aim of 0 for each kind of fault, and that enough messages were held to their order."""
    verdict = judged.verdict
    checked = verdict.order_checked / verdict.deliverable
    return [
        *(Aim(str(fault), count, 0) for fault, count in verdict.faults.items()),
        Aim("wrong answers to cancels, replacements and deliver-now requests", len(judged.wrong_answers), 0),
        Aim("wrong deliveries and answers of messages that have names", len(judged.wrong_names), 0),
        Aim("wrong occurrences and answers of schedules", len(judged.schedules_judged.problems), 0),
        Aim("kinds of load that did not occur", len(_absent(judged)), 0),
        Aim("share of messages held to their order", checked, LEAST_CHECKED, at_least=True),
    ]


def _received_s(judged: JudgedLoad) -> list[npt.NDArray[np.float64]]:
    """Return when each record was received (epoch s), of each shard: each fault strikes them all."""
    settings = judged.application.settings
    times: list[list[float]] = [[] for _ in range(settings.bucket.shards)]
    for record in judged.received:
        # Any shard writes to the dead-letter topic.
        if record.topic != settings.topics.dead_letter:
            times[shard_of(record.topic, record.partition, len(times))].append(record.received_ms / 1000)
    return [np.array(of_shard) for of_shard in times]


def _outcome(
    seed: int,
    minutes: float,
    judged: JudgedLoad,
    injected: list[tuple[Fault, float]],
    received_s: list[npt.NDArray[np.float64]],
    starts: int,
) -> Outcome:
    every_gap = gaps_s(received_s, [(at_s, at_s + fault.lasts_s) for fault, at_s in injected], _IN_FLIGHT_S)
    gaps = {kind: _gaps_of(kind, injected, every_gap) for kind in _LIMITS_S}
    for (fault, at_s), gap in zip(injected, every_gap, strict=True):
        if gap is not None and gap.seconds > _LIMITS_S.get(fault.kind, max(_LIMITS_S.values())):
            say(f"{fault.kind} at {instant(int(at_s * 1000))}: next delivery after {gap.seconds:.1f} s")
    figures: dict[str, dict[str, Any]] = {
        "campaign": {"seed": seed, "minutes": minutes, "faults": len(injected), "starts of the job": starts}
        | counts_of(judged),
        "faults": tally(fault for fault, _ in injected),
        "seconds to the next delivery": {
            f"{kind}, {name} of {len(seconds)}": round(float(value), 1)
            for kind, (every, alone) in gaps.items()
            for which, seconds in (("", every), ("alone, ", alone))
            if seconds
            for name, value in ((f"{which}median", np.median(seconds)), (f"{which}longest", max(seconds)))
        },
    }
    aims = [
        *contract_aims(judged),
        *(
            Aim(
                f"next delivery after a {kind} that no other fault struck into, longest",
                max(alone, default=None),
                _LIMITS_S[kind],
                "s",
            )
            for kind, (_, alone) in gaps.items()
        ),
    ]
    about = f"{len(injected)} faults in {minutes:g} minutes of {RATE} messages/s; seed {seed}"
    return Outcome(NAME, about, aims, figures)


def _gaps_of(kind: str, injected: list[tuple[Fault, float]], gaps: list[Gap | None]) -> tuple[list[float], list[float]]:
    """Return the seconds from each fault of `kind` to the next delivery: for all of them, and for isolated ones."""
    own = [gap for (fault, _), gap in zip(injected, gaps, strict=True) if fault.kind == kind and gap is not None]
    return [gap.seconds for gap in own], [gap.seconds for gap in own if gap.alone]
