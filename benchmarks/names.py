"""Names: new messages with names, while a million messages with names wait and a load falls due."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.aims import LATENESS_MS, Figures, fault_aims, figure, held_aim, ratio
from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.job import Application, Job
from benchmarks.lateness import LONGEST_S, SHORTEST_S
from benchmarks.load import Header, Load, Publisher, instant
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.traffic import Traffic, curve, run_through
from benchmarks.waiting import say, wait_until
from state.names import NAME_HEADER

MESSAGES, DUE_IN_S = 1_000_000, 48 * 3600
# Half of those with names take over a name under which another message waits.
FAR_PER_S = 100
RATE, WARM_UP_S, LOAD_S, LEAST_S = 1_000, 10.0, 60.0, 15.0
PLAIN, NAMED = "plain", "named"
# After the ingest, so that merges are not measured as well.
_SETTLE_S = 60.0
_TIMEOUT_S = 1800.0
_AT_ONCE = 200_000


def measure(stand: Stand, scale: float) -> Outcome:
    """Seal messages that have names. Send a load through the job with far messages, first without names, then with."""
    count, load_s = int(MESSAGES * scale), max(LEAST_S, LOAD_S * scale)
    named = "names-named-in"
    overrides = [f"topics.input=names-in,{named}", f"policies.{named}.names=header"]
    # A batch that decides names seals the messages that it takes in. A batch without names must do the same to compare.
    application = stand.application("names", *overrides, "bucket.max_messages=100")
    job = stand.job(application)
    publisher = Publisher(stand.bootstrap, named, PARTITIONS)
    begun_s = time.monotonic()
    _seal(application, job, publisher, named, count)
    sealed_s = time.monotonic() - begun_s
    say(f"{count:,} messages have names, after {sealed_s:.0f} s; {_SETTLE_S:.0f} s to settle")
    time.sleep(_SETTLE_S)
    figures: dict[str, dict[str, Any]] = {}
    series = {}
    for number, (case, publish_far) in enumerate(((PLAIN, _publish_plain), (NAMED, _publish_named))):
        traffic = Traffic(RATE, SHORTEST_S, LONGEST_S, WARM_UP_S, load_s, first=number * MESSAGES)
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(publish_far, publisher, count, traffic.seconds)
            lateness_ms, figures[case] = run_through(stand, application, job, traffic)
            beside.result()
        series[case] = curve(lateness_ms)
    figures[NAMED]["named_per_s"] = round(count / sealed_s)
    publisher.close()
    return Outcome(
        "names", f"{FAR_PER_S} named messages/s beside {count:,} that wait", aims_of(figures), figures, series
    )


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: the load notices nothing of names, and a batch takes little longer."""

    def of_plain(name: str) -> float | None:
        return ratio(figure(figures, NAMED, name), figure(figures, PLAIN, name))

    return [
        Aim("lateness p99, of that without names", of_plain("p99_ms"), 1.3),
        Aim("memory, of that without names", of_plain("mb_job"), 1.2),
        Aim("a batch's steps p50, of those without names", of_plain("batch_steps_p50_s"), 2.0),
        *(aim for case in (PLAIN, NAMED) for aim in (held_aim(figures, case), *fault_aims(figures, case))),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the lateness in both cases."""
    return lateness_figure(outcome, LATENESS_MS["p99"])


def _seal(application: Application, job: Job, publisher: Publisher, topic: str, count: int) -> None:
    """Let `count` messages wait, each under a name of its own."""
    taken_in = CheckpointWatch(application.folder / "checkpoint", topic)
    taken_in.start()
    try:
        for first in range(0, count, _AT_ONCE):
            stamp_ms = time.time_ns() // 1_000_000
            for number in range(first, min(count, first + _AT_ONCE)):
                publisher.publish(*_message(number, b"n%d" % number, stamp_ms))
            publisher.flush()
            # No further ahead, so that nothing is measured later that was left over.
            wait_until(_committed(taken_in, first), _TIMEOUT_S, f"{first:,} messages with names", job.check)
        wait_until(_committed(taken_in, count), _TIMEOUT_S, f"{count:,} messages with names", job.check)
    finally:
        taken_in.stop()


def _committed(watch: CheckpointWatch, count: int) -> Callable[[], bool]:
    return lambda: watch.messages >= count


def _publish_plain(publisher: Publisher, count: int, seconds: float) -> None:
    """Publish messages without names for `seconds`, due like those with names."""

    def plain(number: int, now_s: float) -> tuple[int, list[Header]]:
        load, (due, _) = _message(number, b"", int(now_s * 1000))
        return load.due_ms * 1000, [due]

    publisher.pace(FAR_PER_S, seconds, plain, first=count)


def _publish_named(publisher: Publisher, count: int, seconds: float) -> None:
    """Publish messages for `seconds`, in turn under a name that waits and under a new one."""
    chance = random.Random(5)

    def named(number: int, now_s: float) -> tuple[int, list[Header]]:
        name = b"n%d" % (number if number % 2 else chance.randrange(count))
        load, headers = _message(number, name, int(now_s * 1000))
        return load.due_ms * 1000, headers

    publisher.pace(FAR_PER_S, seconds, named, first=2 * count)


def _message(number: int, name: bytes, stamp_ms: int) -> tuple[Load, list[Header]]:
    load = Load(number, stamp_ms + DUE_IN_S * 1000, stamp_ms)
    return load, [instant(load), (NAME_HEADER, name)]
