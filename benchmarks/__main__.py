"""`python -m benchmarks`: runs the benchmarks one after the other, each with a broker of its own if it needs one."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import (
    burst,
    cadence,
    cancels,
    commits,
    endurance,
    forward,
    hot,
    idle,
    ids,
    index,
    ingest,
    lateness,
    names,
    outage,
    overload,
    plain,
    planning,
    schedules,
    sealed,
    shards,
    spread,
    sustained,
    topics,
    watched,
    window,
)
from benchmarks.outcome import Outcome
from benchmarks.plots import save
from benchmarks.provenance import service_code
from benchmarks.scale import COUNTS
from benchmarks.scale import run as run_scale
from benchmarks.stand import Stand
from benchmarks.waiting import say


@dataclass(frozen=True)
class Benchmark:
    """The functions of a benchmark's module; `measure` takes the scale."""

    measure: Callable[[float], Outcome]
    draw: Callable[[Outcome], Any]


def on_a_stand(measure: Callable[[Stand, float], Outcome]) -> Callable[[float], Outcome]:
    """Wrap a `measure` that needs a broker: each call gets a new stand."""

    def measure_with_stand(scale: float) -> Outcome:
        with Stand() as stand:
            return measure(stand, scale)

    return measure_with_stand


RESULTS = Path("benchmarks/results")
BENCHMARKS = {
    "lateness": Benchmark(on_a_stand(lateness.measure), lateness.draw),
    "plain": Benchmark(on_a_stand(plain.measure), plain.draw),
    "forward": Benchmark(on_a_stand(forward.measure), forward.draw),
    "topics": Benchmark(on_a_stand(topics.measure), topics.draw),
    "outage": Benchmark(on_a_stand(outage.measure), outage.draw),
    "ingest": Benchmark(on_a_stand(ingest.measure), ingest.draw),
    "sealed": Benchmark(on_a_stand(sealed.measure), sealed.draw),
    "spread": Benchmark(on_a_stand(spread.measure), spread.draw),
    "burst": Benchmark(on_a_stand(burst.measure), burst.draw),
    "hot": Benchmark(on_a_stand(hot.measure), hot.draw),
    "overload": Benchmark(on_a_stand(overload.measure), overload.draw),
    "idle": Benchmark(on_a_stand(idle.measure), idle.draw),
    "watched": Benchmark(on_a_stand(watched.measure), watched.draw),
    "ids": Benchmark(ids.measure, ids.draw),
    "index": Benchmark(index.measure, index.draw),
    "commits": Benchmark(commits.measure, commits.draw),
    "window": Benchmark(window.measure, window.draw),
    "planning": Benchmark(planning.measure, planning.draw),
    "shards": Benchmark(on_a_stand(shards.measure), shards.draw),
    "cadence": Benchmark(on_a_stand(cadence.measure), cadence.draw),
    "cancels": Benchmark(on_a_stand(cancels.measure), cancels.draw),
    "names": Benchmark(on_a_stand(names.measure), names.draw),
    "schedules": Benchmark(on_a_stand(schedules.measure), schedules.draw),
    "sustained": Benchmark(on_a_stand(sustained.measure), sustained.draw),
    "endurance": Benchmark(on_a_stand(endurance.measure), endurance.draw),
}
# They take hours, and are not part of `all`.
_LONG = ("scale", "sustained", "endurance")


class Which(StrEnum):
    """The values of the argument."""

    lateness = "lateness"
    plain = "plain"
    forward = "forward"
    topics = "topics"
    outage = "outage"
    ingest = "ingest"
    sealed = "sealed"
    spread = "spread"
    burst = "burst"
    hot = "hot"
    overload = "overload"
    idle = "idle"
    watched = "watched"
    ids = "ids"
    index = "index"  # type: ignore[assignment]
    commits = "commits"
    window = "window"
    planning = "planning"
    shards = "shards"
    cadence = "cadence"
    cancels = "cancels"
    names = "names"
    schedules = "schedules"
    sustained = "sustained"
    endurance = "endurance"
    scale = "scale"
    all = "all"


class Spread(StrEnum):
    """The values of `--spread` (`benchmarks.feed.SPREADS`)."""

    within_10_minutes = "10m"
    over_48_hours = "48h"
    over_a_year = "366d"
    with_a_tail = "tail"


def main(
    which: Annotated[
        Which, typer.Argument(help=f"The benchmark to run; `all` excludes {', '.join(_LONG)}, which take hours.")
    ] = Which.all,
    scale: Annotated[
        float, typer.Option(min=0.001, max=1, help="Share of the messages and seconds; below 1 the run is a trial.")
    ] = 1.0,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for results; by default {RESULTS}, for a trial a temporary folder.")
    ] = None,
    messages: Annotated[int | None, typer.Option(min=1000, help="scale: measure only this number.")] = None,
    spread: Annotated[Spread, typer.Option(help="scale: how the due times are spread.")] = Spread.within_10_minutes,
    minutes: Annotated[
        int, typer.Option(min=2, max=1440, help="schedules: for how long occurrences are measured.")
    ] = schedules.MINUTES,
) -> None:
    """Measure Delayline on a separate broker. Exit code 1 if a benchmark failed to finish.

    An aim that is not met is a result, not an error.
    """
    # SIGTERM becomes SystemExit, so that the broker and the jobs are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = out or (RESULTS if scale == 1 else Path(tempfile.mkdtemp(prefix="delayline-trial-")))
    chosen = [name for name in BENCHMARKS if which == name or (which is Which.all and name not in _LONG)]
    own_time = Benchmark(on_a_stand(partial(schedules.measure, minutes=minutes)), schedules.draw)
    benchmarks = BENCHMARKS | {"schedules": own_time}
    failed = [name for name in chosen if not _run(name, benchmarks[name], scale, folder)]
    if which is Which.scale:
        counts = [messages] if messages else [int(count * scale) for count in COUNTS]
        failed = [] if run_scale(counts, scale, folder, spread.value) else ["scale"]
    if failed:
        say(f"not measured: {', '.join(failed)}")
        raise typer.Exit(1)


def _run(name: str, benchmark: Benchmark, scale: float, out: Path) -> bool:
    begun, code = time.monotonic(), service_code()
    say(f"{name}, at scale {scale:g}")
    try:
        outcome = benchmark.measure(scale)
    except Exception:  # noqa: BLE001, the other measurements are worth their time
        traceback.print_exc()
        return False
    if service_code() != code:
        say(f"{name}: the service's files changed during the measurement")
        return False
    outcome.write(out, scale)
    save(benchmark.draw(outcome), out / f"{name}.png")
    outcome.show()
    verdict = "a trial" if scale < 1 else "met" if outcome.met else "NOT met"
    say(f"{name}: {verdict}, in {time.monotonic() - begun:.0f} s; {out / name}.json, .png")
    return True


if __name__ == "__main__":
    typer.run(main)
