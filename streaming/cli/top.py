"""`delayline top`: what the page shows, in a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.options import ConfigFile, Overrides, duration_ms, settings_of

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions

    from conf.settings import Settings
    from streaming.status.sample import Sample

# For how long looks are kept.
_KEPT_MS = 3_600_000
_WIDTH = 100
_HEAD_LINES = 2


def top(
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to ask the job, 500ms or longer.")] = "2s",
    times: Annotated[
        int | None, typer.Option(min=1, help="End after this many refreshes. Default: run until Ctrl-C.")
    ] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Live dashboard in the terminal (without messages): due times, lateness, rates, merges, shards, problems.

    Asks the running job at monitor.job, the broker, and for problems the processes at monitor.release, monitor.forward
    and monitor.process_addresses. On a terminal it fills the screen, ideally 100 columns and 40 lines. Otherwise it
    prints each refresh. See docs/operate/status.md.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from conf.errors import UsageError
    from streaming.status.problems import ProcessProblems

    pause_ms = duration_ms("--every", every)
    if pause_ms < 500:
        raise UsageError(f"--every {every}: allowed is 500ms or longer, because each refresh queries the broker")
    settings = settings_of(config, overrides)
    if not settings.monitor.job:
        raise UsageError(
            "monitor.job is not set. `delayline top` asks the job at this address. `delayline status` needs no address"
        )
    console = Console(highlight=False)
    samples: deque[Sample] = deque(maxlen=max(2, _KEPT_MS // pause_ms))
    problems = ProcessProblems(settings)
    with ExitStack() as stack:
        show: Callable[[str], object] = typer.echo
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
            show = lambda seen: live.update(Text(seen, no_wrap=True, overflow="crop"), refresh=True)  # noqa: E731
        for number in range(times) if times else count():
            if number:
                time.sleep(pause_ms / 1000)
            size = console.size if console.is_terminal else None
            show(_seen(settings, samples, problems.newest(), size))


def _seen(
    settings: Settings,
    samples: deque[Sample],
    problems: Sequence[Mapping[str, Any]],
    size: ConsoleDimensions | None,
) -> str:
    from conf.instants import instant
    from streaming.status.running import status_of_job
    from streaming.status.sample import sample_of
    from streaming.status.screen import problem_lines, screen_lines

    width, height = (_WIDTH, None) if size is None else (size.width, size.height - _HEAD_LINES)
    status = status_of_job(settings)
    if status is None:
        at = instant(time.time_ns() // 1_000_000)
        no_answer = (
            "does not answer, does not yet know which messages wait, or belongs to another application "
            "(application_id, storage.path)"
        )
        return "\n".join([f"{at}  the job at {settings.monitor.job} {no_answer}", *problem_lines(problems, height)])
    samples.append(sample_of(status))
    lines = screen_lines(status, list(samples), problems, width, height)
    return "\n".join([f"{instant(status.now_ms)}  {settings.application_id}", "", *lines])
