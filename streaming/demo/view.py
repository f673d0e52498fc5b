"""What the demo shows: its progress while it runs, live on a terminal and as plain lines elsewhere; its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

from conf.durations import format_duration
from streaming.demo.messages import Publication
from streaming.demo.result import Lateness, Result
from streaming.judge.record import Published, Received
from streaming.judge.verdict import LEAST_CHECKED, Verdict

_LINE_EVERY_S, _FRAME_EVERY_S = 2.0, 0.5
_RECENT_MS = 5_000


@dataclass(frozen=True)
class Glance:
    """The counts of one moment. `next_due_ms` and the lateness of the last seconds are None if there is none."""

    published: int
    delivered: int
    dead_lettered: int
    late_ms: float | None
    worst_ms: float | None
    next_due_ms: int | None
    now_ms: int

    @property
    def waiting(self) -> int:
        """Published and not come out."""
        return max(0, self.published - self.delivered - self.dead_lettered)


def glance(publication: Publication, received: list[Received], dead_letter: str) -> Glance:
    """Count what there is now."""
    sent, got = dict(publication.sent), list(received)
    now_ms = time.time_ns() // 1_000_000
    out = {record.id for record in got}
    dead = {record.id for record in got if record.topic == dead_letter}
    recent = sorted(_recent(sent, got, now_ms))
    dues = [message.due_ms for message in sent.values() if message.error is None and message.id not in out]
    return Glance(
        published=len(sent),
        delivered=len(out) - len(dead),
        dead_lettered=len(dead),
        late_ms=recent[len(recent) // 2] if recent else None,
        worst_ms=recent[-1] if recent else None,
        next_due_ms=min(dues, default=None),
        now_ms=now_ms,
    )


def _recent(sent: dict[str, Published], got: list[Received], now_ms: int) -> Iterator[float]:
    for record in got:
        message = sent.get(record.id)
        if message and message.error is None and record.received_ms > now_ms - _RECENT_MS:
            yield record.received_ms - message.due_ms


class View:
    """Shows steps as they begin, and glances in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun_s = self._shown_s = time.monotonic()
        self._live: Live | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._begun_s

    @contextmanager
    def live(self) -> Iterator[None]:
        """Keep a table up to date inside, on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as self._live:
            yield
        self._live = None

    def step(self, text: str) -> None:
        """Say what begins now."""
        self._console.print(f"{self.elapsed_s:6.1f} s  {text}", highlight=False, style="bold")

    def show(self, job: str, look: Callable[[], Glance]) -> None:
        """Show a moment now and then; `job` says what the job is doing, `look` counts."""
        pause_s = _LINE_EVERY_S if self._live is None else _FRAME_EVERY_S
        if time.monotonic() - self._shown_s < pause_s:
            return
        self._shown_s = time.monotonic()
        seen = look()
        if self._live is not None:
            self._live.update(_moment(job, seen))
        elif seen.published:
            cells = "  ".join(f"{name} {value}" for name, value in _cells(seen).items())
            self._console.print(f"{self.elapsed_s:6.1f} s  job {job:10}  {cells}", highlight=False, soft_wrap=True)

    def result(self, result: Result) -> None:
        """Show the table at the end."""
        table = Table(title="what the output topics say", show_header=False, title_justify="left")
        table.add_column()
        table.add_column(justify="right")
        for name, value, good in _rows(result.verdict):
            table.add_row(name, value, style="" if good else "bold red")
        table.add_row("lateness p50 / p99, delayed messages", _lateness(result.overall))
        table.add_row("the same without what fell due during the outage", _lateness(result.without_outage))
        table.add_row("plain messages, from publishing to receiving", _lateness(result.plain))
        self._console.print(table)
        for problem in result.verdict.problems():
            self._console.print(problem, highlight=False, style="red")


def _moment(job: str, seen: Glance) -> Table:
    table = Table(show_header=False)
    table.add_column(min_width=24)
    table.add_column(min_width=24, justify="right")
    table.add_row("job", job, style="red" if job == "killed" else "green" if job == "running" else "yellow")
    for name, value in _cells(seen).items():
        table.add_row(name, value)
    return table


def _cells(seen: Glance) -> dict[str, str]:
    def late(ms: float | None) -> str:
        return "-" if ms is None else format_duration(ms)

    ahead_ms = None if seen.next_due_ms is None else seen.next_due_ms - seen.now_ms
    next_due = "-" if ahead_ms is None else f"in {ahead_ms / 1000:.1f}s" if ahead_ms > 0 else "now"
    return {
        "published": str(seen.published),
        "delivered": str(seen.delivered),
        "dead-lettered": str(seen.dead_lettered),
        "waiting": str(seen.waiting),
        "late (median of 5 s)": late(seen.late_ms),
        "latest": late(seen.worst_ms),
        "next due": next_due,
    }


def _rows(verdict: Verdict) -> Iterator[tuple[str, str, bool]]:
    """Give name, value, and whether it is as it should be."""
    yield "published", f"{verdict.published}", verdict.published == verdict.deliverable + verdict.bad
    delivered = f"{verdict.delivered} of {verdict.deliverable}"
    yield "delivered", delivered, verdict.delivered == verdict.deliverable
    dead = f"{verdict.dead_lettered} of {verdict.bad}"
    yield "dead-lettered, with the right code", dead, verdict.dead_lettered == verdict.bad
    for fault, count in verdict.faults.items():
        yield str(fault), str(count), count == 0
    enough = verdict.order_checked >= LEAST_CHECKED * verdict.deliverable
    yield "accepted in time, so checked for order", f"{verdict.order_checked} of {verdict.deliverable}", enough


def _lateness(lateness: Lateness) -> str:
    return f"{lateness.p50:,.0f} / {lateness.p99:,.0f} ms" if lateness.count else "-"
