"""The chaos campaign: random faults under load, on a cluster; the judge checks all delivered messages.

`python -m benchmarks.chaos --minutes 30 --seed 7` starts a broker, a Spark cluster with two workers, and the job, which
a supervisor restarts whenever it ends. 500 messages/s with mixed delays are published, while driver, workers and broker
are killed and paused, and the release process is killed, at random moments. The exit code is 0 only if no message is
lost, doubled, early, altered, misplaced or out of order, and at least half of the messages could be checked for order.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.chaos_driver import Driver
from benchmarks.chaos_faults import Fault, FaultInjector, plan_faults, tally
from benchmarks.chaos_gaps import gaps_s
from benchmarks.chaos_published import published_in
from benchmarks.cluster import Cluster
from benchmarks.job import Application
from benchmarks.load import Header, Load, Publisher, any_delay
from benchmarks.outcome import Aim, Outcome
from benchmarks.spool import Spool
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say, wait_until
from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.contract import Environment
from streaming.judge.outputs import Outputs
from streaming.judge.verdict import LEAST_CHECKED, Verdict, judge
from streaming.storage.paths import checkpoint_path

RATE = 500
_NAME, _OTHER = "chaos", "chaos-other"
_LONGEST_S = 300.0
_WARM_UP, _WARM_UP_TIMEOUT_S = 100, 180.0
# Time after the last due time: for a start of the job, overdue messages, and a busy machine.
_DRAIN_S = 180.0
# A record that was committed before a kill is received within this time after it.
_IN_FLIGHT_S = 1.0
# Seconds from a fault that no other fault struck into to the next delivery. What was handed over needs no driver and no
# worker, but processes of all of them share the machine.
_LIMITS_S = {"driver-kill": 10.0, "release-kill": 5.0, "worker-kill": 5.0}
_SETTINGS = (
    f"topics.allowed_outputs={_OTHER}",
    # Low limits, so that the job seals, loads, merges and deletes.
    "bucket.max_messages=3000",
    "bucket.limit=20",
    "segment.max_seconds=10",
    "window.ahead=20s",
    "storage.time_partition=1m",
    "spark.spark.driver.host=127.0.0.1",
    "spark.spark.executor.cores=1",
    "spark.spark.cores.max=2",
    "spark.spark.executor.memory=700m",
    f"spark.spark.pyspark.python={sys.executable}",
)


class Campaign(NamedTuple):
    """The judge's verdict on a campaign, and the outcome: the verdict and the timings in the form of a benchmark."""

    verdict: Verdict
    outcome: Outcome


def campaign(stand: Stand, seed: int, minutes: float, overrides: tuple[str, ...] = ()) -> Campaign:
    """Run a campaign of `minutes` with the faults of `seed`. `overrides` are additional settings of the job."""
    seconds = minutes * 60
    plan = plan_faults(seed, seconds)
    say(f"seed {seed}: {len(plan)} faults in {minutes:g} minutes: {tally(plan)}")
    stand.topic(_OTHER)
    with ExitStack() as stack:
        cluster = Cluster(stand.folder)
        stack.callback(cluster.stop)
        cluster.start()
        application = stand.application(_NAME, *_SETTINGS, f"spark.spark.master={cluster.url}", *overrides)
        watch = stack.enter_context(CheckpointWatch(Path(checkpoint_path(application.settings))))
        received = Spool(stand.folder / "received")
        topics = [application.output, _OTHER, application.settings.topics.dead_letter]
        outputs = Outputs(stand.bootstrap, topics, received.append)
        stack.callback(outputs.close)
        driver = Driver(stand.folder / _NAME, application.overrides)
        stack.callback(driver.stop)
        driver.start()
        driver.wait_until_it_runs()
        load = _Load(stand.bootstrap, application.input, seed, seconds)
        _warm_up(stand, application, load)
        load.start()
        injected = _inject_all(plan, FaultInjector(stand.broker, cluster, driver.process, seed), load)
        load.join()
        _wait_for_all(outputs, load.published, _longest_s(seconds) + _DRAIN_S)
        # Duplicates may arrive last: stop the job, then read to the end.
        driver.stop()
        outputs.drain()
        published = published_in(stand, application.input, lambda number: _topic_of(number, application.output))
        if len(published) != load.published:
            raise RuntimeError(f"{len(published)} messages were published instead of {load.published}")
        environment = Environment({topic: {count} for topic, count in outputs.partitions.items()})
        verdict = judge(published, received, watch.acceptance(), environment)
        received_s = np.array([record.received_ms / 1000 for record in received])
        return Campaign(verdict, _outcome(seed, minutes, verdict, injected, received_s, driver.starts))


def _wait_for_all(outputs: Outputs, count: int, timeout_s: float) -> None:
    """Wait until `count` messages are delivered, or for `timeout_s`; the judge reports what is missing."""
    deadline_s = time.monotonic() + timeout_s
    while len(outputs.ids) < count and time.monotonic() < deadline_s:
        outputs.check()
        time.sleep(0.1)


class _Load(threading.Thread):
    """Publishes `RATE` messages/s for `seconds`, each with a random delay, and an output that its number determines."""

    def __init__(self, bootstrap: str, topic: str, seed: int, seconds: float) -> None:
        super().__init__(daemon=True, name="load")
        # Idempotent, because a killed broker may have stored a record without acknowledging it.
        self._publisher = Publisher(bootstrap, topic, PARTITIONS, {"enable.idempotence": True, "log_level": 0})
        self._chance = random.Random(seed)
        self._seconds = seconds
        self.published = _WARM_UP + int(RATE * seconds)

    def warm_up(self) -> None:
        """Publish the first messages, which are due immediately."""
        now_ms = time.time_ns() // 1_000_000
        for number in range(_WARM_UP):
            self._publisher.publish(Load(number, now_ms, now_ms), _route(number))
        self._publisher.flush()

    def run(self) -> None:
        """Publish the other messages."""
        self._publisher.pace(RATE, self._seconds, self._message, first=_WARM_UP)
        self._publisher.close()

    def _message(self, number: int, now_s: float) -> tuple[int, list[Header]]:
        stamp_ms = int(now_s * 1000)
        # Half of the delays are up to ten seconds; some messages wait through several faults.
        longest_s = min(self._chance.choice((10.0, 10.0, 60.0, _LONGEST_S)), _longest_s(self._seconds))
        due_ms = stamp_ms + int(self._chance.uniform(0.1, longest_s) * 1000)
        return due_ms * 1000, [any_delay(Load(number, due_ms, stamp_ms)), *_route(number)]


def _longest_s(seconds: float) -> float:
    """Return the longest delay in a campaign of `seconds`. A short campaign should not wait long at its end."""
    return min(_LONGEST_S, seconds / 3)


def _route(number: int) -> list[Header]:
    return [("deliver-to", _OTHER.encode())] if _to_other(number) else []


def _topic_of(number: int, output: str) -> str:
    return _OTHER if _to_other(number) else output


def _to_other(number: int) -> bool:
    return number % 5 == 0


def _warm_up(stand: Stand, application: Application, load: _Load) -> None:
    """Let the job deliver before the first fault, so that its transactional writers are open."""
    load.warm_up()
    topics = (application.output, _OTHER)
    wait_until(
        lambda: all(sum(stand.end_offsets(topic)) for topic in topics), _WARM_UP_TIMEOUT_S, "a delivery", lambda: None
    )


def _inject_all(plan: list[Fault], injector: FaultInjector, load: threading.Thread) -> list[tuple[Fault, float]]:
    """Inject the faults; return each with the time at which it began (epoch s)."""
    begun_s = time.time()
    injected: list[tuple[Fault, float]] = []
    for fault in plan:
        while (ahead_s := begun_s + fault.at_s - time.time()) > 0:
            time.sleep(min(ahead_s, 0.5))
        if not load.is_alive() and not injected:
            raise RuntimeError("the publisher ended before the first fault")
        say(f"{fault.kind}, {fault.lasts_s:g} s")
        injected.append((fault, injector.inject(fault)))
    return injected


def _outcome(
    seed: int,
    minutes: float,
    verdict: Verdict,
    injected: list[tuple[Fault, float]],
    received_s: npt.NDArray[np.float64],
    starts: int,
) -> Outcome:
    faults = {str(fault): count for fault, count in verdict.faults.items()}
    gaps = {kind: _gaps_of(kind, injected, received_s) for kind in _LIMITS_S}
    figures: dict[str, dict[str, Any]] = {
        "campaign": {"seed": seed, "minutes": minutes, "faults": len(injected), "starts of the job": starts}
        | {"messages": verdict.published}
        | faults
        | {"held to order": verdict.order_checked},
        "faults": tally(fault for fault, _ in injected),
        "seconds to the next delivery": {
            f"{kind}, {name} of {len(seconds)}": round(float(value), 1)
            for kind, (every, alone) in gaps.items()
            for which, seconds in (("", every), ("alone, ", alone))
            if seconds
            for name, value in ((f"{which}median", np.median(seconds)), (f"{which}longest", max(seconds)))
        },
    }
    aims = [Aim(name, count, 0) for name, count in faults.items()]
    checked = verdict.order_checked / verdict.deliverable
    aims.append(Aim("share of messages held to their order", checked, LEAST_CHECKED, at_least=True))
    aims += [
        Aim(
            f"next delivery after a {kind} that no other fault struck into, longest",
            max(alone, default=None),
            _LIMITS_S[kind],
            "s",
        )
        for kind, (_, alone) in gaps.items()
    ]
    about = f"{len(injected)} faults in {minutes:g} minutes of {RATE} messages/s; seed {seed}"
    return Outcome("chaos", about, aims, figures)


def _gaps_of(
    kind: str, injected: list[tuple[Fault, float]], received_s: npt.NDArray[np.float64]
) -> tuple[list[float], list[float]]:
    """Return the seconds from each fault of `kind` to the next delivery: for all of them, and for isolated ones."""
    gaps = gaps_s(received_s, [(at_s, at_s + fault.lasts_s) for fault, at_s in injected], _IN_FLIGHT_S)
    own = [gap for (fault, _), gap in zip(injected, gaps, strict=True) if fault.kind == kind and gap is not None]
    return [gap.seconds for gap in own], [gap.seconds for gap in own if gap.alone]


def main(
    minutes: Annotated[float, typer.Option(min=0.5, max=1440, help="Duration of the campaign.")] = 30.0,
    seed: Annotated[int | None, typer.Option(help="Seed; repeats the faults and the load of a campaign.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for chaos.json.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Additional setting of the job. Repeatable.")
    ] = None,
) -> None:
    """Run a campaign. Exit code 0 only if the contract held. Missed aims for timings are printed, but are no error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    with Stand() as stand:
        verdict, outcome = campaign(stand, seed, minutes, tuple(settings or ()))
        if out is not None:
            outcome.write(out, 1.0)
    outcome.show()
    if problems := verdict.problems():
        again = f"python -m benchmarks.chaos --minutes {minutes:g} --seed {seed}"
        say(f"the contract was broken or not proven ({'; '.join(problems)}); to repeat: {again}")
        raise typer.Exit(1)
    faults = outcome.figures["campaign"]["faults"]
    say(f"the contract held: {verdict.published:,} messages, {faults} faults, seed {seed}")


if __name__ == "__main__":
    typer.run(main)
