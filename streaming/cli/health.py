"""`delayline health`: ask running processes whether they make progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of

if TYPE_CHECKING:
    from conf.settings import Settings


def health(
    of: Annotated[
        Literal["job", "release", "forward"],
        typer.Argument(
            help="Which processes to ask: the job at monitor.job, or the processes at monitor.release or "
            "monitor.forward."
        ),
    ] = "job",
    live: Annotated[
        bool, typer.Option("--live", help="Ask whether the process makes progress, not whether it is on time.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Check whether the job, its release processes, or its forwarders are ready: whether messages leave on time.

    Asks each of the `release.processes` at its own port; with 0, the one at monitor.release. The same applies to
    forwarders. Exit code 0 if all are ready, 1 if one is not or does not answer, with the reasons. Does not start Spark
    or contact brokers. See docs/operate/monitoring.md.
    """
    from conf.errors import UsageError
    from conf.printable import printable
    from streaming.monitor.client import started_addresses

    settings = settings_of(config, overrides)
    address: str = getattr(settings.monitor, of)
    if address.rpartition(":")[2] in ("", "0"):
        raise UsageError(
            f"monitor.{of} = {address!r}: set it to an address with a port, for that process and for this command"
        )
    started = [address] if of == "job" else started_addresses(settings, of)
    addresses, good = started or [address], True
    for each in addresses:
        is_good, sentence = _asked(each, live, settings)
        good &= is_good
        if not started and sentence.startswith("no answer"):
            sentence += ". This host's job starts no such process: ask on the host of the process, or in its pod"
        # Another server may answer.
        sentence = printable(sentence)
        typer.echo(sentence if len(addresses) == 1 or each in sentence else f"{each}: {sentence}")
    if not good:
        raise typer.Exit(1)


def _asked(address: str, live: bool, settings: Settings) -> tuple[bool, str]:
    """Ask the process at `address`, which should be one of `settings`: whether it is well, and what it says."""
    import json

    from streaming.monitor.client import NoAnswer, ask, other_application

    try:
        answer = ask(address, "/healthz" if live else "/readyz")
        reasons, other = json.loads(answer.body)["reasons"], other_application(answer, settings)
    except NoAnswer as problem:
        return False, str(problem)
    except (ValueError, KeyError, TypeError):
        return False, f"no answer from {address}: another server than Delayline's answers there"
    if other is not None:
        return False, f"another application answers at {address}: {other}"
    good, wanted = answer.code == 200, "live" if live else "ready"
    return good, ": ".join([wanted if good else f"not {wanted}", *(["; ".join(reasons)] if reasons else [])])
