"""`delayline demo`: the whole service on this machine, crash included."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from conf.end_signals import END_SIGNALS


def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Run in this new folder and leave logs and data there."),
    ] = None,
) -> None:
    """Show the whole service at work, in under two minutes and with nothing to set up.

    Starts a Kafka broker and the job, publishes a thousand messages with mixed delays to two output topics,
    kills the job with SIGKILL in the middle, starts it again, and checks from the output topics that every
    message came once, not early and in order. Exit code 0 only if so. Leaves nothing running.
    """
    from rich.console import Console

    from streaming.demo.scenario import run_demo
    from streaming.demo.view import View

    if keep is not None:
        _make_empty(keep)
    view = View(Console(highlight=False))
    with _ended_in_order():
        result = run_demo(view, keep)
    view.step("nothing is left running" + (f"; logs and data are in {keep}" if keep else ""))
    view.result(result)
    if not result.holds:
        raise typer.Exit(1)


def _make_empty(folder: Path) -> None:
    from conf.errors import UsageError

    asked = f"--keep {str(folder)!r}: name a folder that is new or empty"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(asked)
    except OSError as problem:
        raise UsageError(f"{asked} ({problem.strerror})") from problem


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a signal that would end the process end first what the demo started."""
    before = {number: signal.signal(number, _end) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second signal must not cut the end short.
    for handled in END_SIGNALS:
        signal.signal(handled, signal.SIG_IGN)
    raise SystemExit(128 + number)
