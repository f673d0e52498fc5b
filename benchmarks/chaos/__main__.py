"""`python -m benchmarks.chaos [cluster|contention]`: run a campaign."""

from __future__ import annotations

import random
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.chaos import campaign, contention
from benchmarks.stand import Stand
from benchmarks.waiting import say


class Which(StrEnum):
    """The campaigns."""

    CLUSTER = "cluster"
    CONTENTION = "contention"


_CAMPAIGNS = {Which.CLUSTER: campaign.campaign, Which.CONTENTION: contention.campaign}


def main(
    which: Annotated[Which, typer.Argument(help="The campaign to run.")] = Which.CLUSTER,
    minutes: Annotated[float, typer.Option(min=0.5, max=1440, help="Duration of the campaign.")] = 30.0,
    seed: Annotated[int | None, typer.Option(help="Seed; repeats the faults and the load of a campaign.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Additional setting of the job. Repeatable.")
    ] = None,
) -> None:
    """Run a campaign. The exit code is 0 only if the contract held. Missed aims for timings are only printed.

    If the contract was broken, or an aim is missed, the folder with all logs is kept.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    with Stand() as stand:
        # Also of a campaign that ends by an error.
        stand.kept = True
        say(f"logs, checkpoint and the broker's data are in {stand.folder}, and stay there if anything is wrong")
        problems, outcome = _CAMPAIGNS[which](stand, seed, minutes, tuple(settings or ()))
        stand.kept = bool(problems) or not outcome.met
        if out is not None:
            outcome.write(out, 1.0)
    outcome.show()
    if problems:
        again = f"python -m benchmarks.chaos {which} --minutes {minutes:g} --seed {seed}"
        say(f"the contract was broken or not proven ({'; '.join(problems)}); to repeat: {again}")
        raise typer.Exit(1)
    say(f"the contract held: {outcome.figures['campaign']['messages']:,} messages, {outcome.about}")


if __name__ == "__main__":
    typer.run(main)
