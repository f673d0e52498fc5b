"""`delayline top`: what `delayline status` shows, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, duration_ms, settings_of

if TYPE_CHECKING:
    from conf.settings import Settings


def top(
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often the job is asked, 500ms or longer.")] = "2s",
    times: Annotated[int | None, typer.Option(min=1, help="End after so many times. Without it: on Ctrl-C.")] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show what waits, when it is due, the last batch, input lag and lateness, and keep it up to date.

    Asks the running job at monitor.job, and the broker. On a terminal it takes the screen; otherwise it prints each
    time.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from conf.errors import UsageError

    pause_ms = duration_ms("--every", every)
    if pause_ms < 500:
        raise UsageError(f"--every {every}: 500ms or longer, since each time asks the broker")
    settings = settings_of(config, overrides)
    if not settings.monitor.job:
        raise UsageError(
            "monitor.job is not set: `delayline top` asks the job there. `delayline status` needs no address"
        )
    console = Console(highlight=False)
    with ExitStack() as stack:
        show: Callable[[str], object] = typer.echo
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
            show = lambda seen: live.update(Text(seen), refresh=True)  # noqa: E731
        for number in range(times) if times else count():
            if number:
                time.sleep(pause_ms / 1000)
            show(_seen(settings))


def _seen(settings: Settings) -> str:
    from conf.instants import instant
    from streaming.status.formats import as_lines
    from streaming.status.running import status_of_job

    status = status_of_job(settings)
    if status is None:
        at = instant(time.time_ns() // 1_000_000)
        no_answer = "does not answer, does not know yet what waits, or is another one (application_id, storage.path)"
        return f"{at}  the job at {settings.monitor.job} {no_answer}"
    return "\n".join([f"{instant(status.now_ms)}  {settings.application_id}", "", *as_lines(status)])
