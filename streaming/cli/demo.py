"""`delayline demo`: the whole service on this machine, including a crash."""

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
        typer.Option("--keep", metavar="DIR", help="Run in this new folder and keep logs and data there."),
    ] = None,
) -> None:
    """Show the whole service at work, in under two minutes and without any setup.

    Starts a Kafka broker and the job, publishes a thousand messages with mixed delays for two output topics, kills the
    job's driver with SIGKILL in the middle and starts the job again, and kills a release process. Then checks in the
    output topics that every message was delivered once, not early, and in order. The exit code is 0 only if the check
    succeeds. Leaves nothing running.
    """
    from rich.console import Console

    from streaming.demo.scenario import run_demo
    from streaming.demo.view import View

    if keep is not None:
        _make_empty(keep)
    view = View(Console(highlight=False))
    with _clean_exit_on_signals():
        result = run_demo(view, keep)
    view.step("everything is stopped" + (f"; logs and data are in {keep}" if keep else ""))
    view.result(result)
    if not result.holds:
        raise typer.Exit(1)


def _make_empty(folder: Path) -> None:
    from conf.errors import UsageError

    message = f"--keep {str(folder)!r}: the folder must be new or empty"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(message)
    except OSError as problem:
        raise UsageError(f"{message} ({problem.strerror})") from problem


@contextmanager
def _clean_exit_on_signals() -> Iterator[None]:
    """Turn termination signals into SystemExit, so that the demo stops its processes before it exits."""
    before = {number: signal.signal(number, _exit) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the shutdown.
    for ignored in END_SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    raise SystemExit(128 + number)
