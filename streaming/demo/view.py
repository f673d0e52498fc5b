"""Shows the demo's progress and its result: a live table on a terminal, plain lines elsewhere."""

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
class Snapshot:
    """The counts at `now_ms` (epoch ms).

    `median_ms` and `largest_ms` are the lateness of messages received in the last seconds. They and `next_due_ms` are
    None without such a message.
    """

    published: int
    delivered: int
    dead_lettered: int
    median_ms: float | None
    largest_ms: float | None
    next_due_ms: int | None
    now_ms: int

    @property
    def waiting(self) -> int:
        """The number of published messages that were not received yet."""
        return max(0, self.published - self.delivered - self.dead_lettered)


def take_snapshot(publication: Publication, received: list[Received], dead_letter: str) -> Snapshot:
    """Count published and received messages as of now. `dead_letter` is the dead-letter topic."""
    sent, records = dict(publication.sent), list(received)
    now_ms = time.time_ns() // 1_000_000
    received_ids = {record.id for record in records}
    dead = {record.id for record in records if record.topic == dead_letter}
    recent_ms = sorted(_recent_lateness_ms(sent, records, now_ms))
    dues_ms = [message.due_ms for message in sent.values() if message.error is None and message.id not in received_ids]
    return Snapshot(
        published=len(sent),
        delivered=len(received_ids) - len(dead),
        dead_lettered=len(dead),
        median_ms=recent_ms[len(recent_ms) // 2] if recent_ms else None,
        largest_ms=recent_ms[-1] if recent_ms else None,
        next_due_ms=min(dues_ms, default=None),
        now_ms=now_ms,
    )


def _recent_lateness_ms(sent: dict[str, Published], records: list[Received], now_ms: int) -> Iterator[float]:
    for record in records:
        message = sent.get(record.id)
        if message and message.error is None and record.received_ms > now_ms - _RECENT_MS:
            yield record.received_ms - message.due_ms


class View:
    """Prints the steps as they begin, and snapshots in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun_s = self._shown_s = time.monotonic()
        self._live: Live | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._begun_s

    @contextmanager
    def live(self) -> Iterator[None]:
        """On a terminal, show a live table while this context is open."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as self._live:
            yield
        self._live = None

    def step(self, text: str) -> None:
        """Print the step that begins now."""
        self._console.print(f"{self.elapsed_s:6.1f} s  {text}", highlight=False, style="bold")

    def show(self, job: str, take: Callable[[], Snapshot]) -> None:
        """Show a snapshot, unless the last one is too recent. `job` is the state of the job, `take` counts."""
        pause_s = _LINE_EVERY_S if self._live is None else _FRAME_EVERY_S
        if time.monotonic() - self._shown_s < pause_s:
            return
        self._shown_s = time.monotonic()
        snapshot = take()
        if self._live is not None:
            self._live.update(_live_table(job, snapshot))
        elif snapshot.published:
            cells = "  ".join(f"{name} {value}" for name, value in _cells(snapshot).items())
            self._console.print(f"{self.elapsed_s:6.1f} s  job {job:10}  {cells}", highlight=False, soft_wrap=True)

    def result(self, result: Result) -> None:
        """Print the table of results."""
        table = Table(title="result, from the output topics", show_header=False, title_justify="left")
        table.add_column()
        table.add_column(justify="right")
        for name, value, good in _rows(result.verdict):
            table.add_row(name, value, style="" if good else "bold red")
        table.add_section()
        table.add_row("lateness p50 / p99 / max (messages)", "")
        table.add_row("  due within 5 s of a release process's kill", _lateness(result.release_down))
        table.add_row("  plain, the driver killed in between", _lateness(result.plain))
        table.add_row("  delayed, the driver killed in between", _lateness(result.delayed))
        self._console.print(table)
        for problem in result.verdict.problems():
            self._console.print(problem, highlight=False, style="red")


def _live_table(job: str, snapshot: Snapshot) -> Table:
    table = Table(show_header=False)
    table.add_column(min_width=24)
    table.add_column(min_width=24, justify="right")
    table.add_row("job", job, style="red" if job == "killed" else "green" if job == "running" else "yellow")
    for name, value in _cells(snapshot).items():
        table.add_row(name, value)
    return table


def _cells(snapshot: Snapshot) -> dict[str, str]:
    def duration(ms: float | None) -> str:
        return "-" if ms is None else format_duration(ms)

    ahead_ms = None if snapshot.next_due_ms is None else snapshot.next_due_ms - snapshot.now_ms
    next_due = "-" if ahead_ms is None else f"in {format_duration(ahead_ms)}" if ahead_ms > 0 else "now"
    return {
        "published": str(snapshot.published),
        "delivered": str(snapshot.delivered),
        "dead-lettered": str(snapshot.dead_lettered),
        "waiting": str(snapshot.waiting),
        "lateness (median of 5 s)": duration(snapshot.median_ms),
        "largest": duration(snapshot.largest_ms),
        "next due": next_due,
    }


def _rows(verdict: Verdict) -> Iterator[tuple[str, str, bool]]:
    """Yield the name, the value, and whether the value is correct."""
    yield "published", f"{verdict.published}", verdict.published == verdict.deliverable + verdict.bad
    delivered = f"{verdict.delivered} of {verdict.deliverable}"
    yield "delivered", delivered, verdict.delivered == verdict.deliverable
    dead = f"{verdict.dead_lettered} of {verdict.bad}"
    yield "dead-lettered, with the right code", dead, verdict.dead_lettered == verdict.bad
    for fault, count in verdict.faults.items():
        yield str(fault), str(count), count == 0
    enough = verdict.order_checked >= LEAST_CHECKED * verdict.deliverable
    yield "accepted in time, so checked for order", f"{verdict.order_checked} of {verdict.deliverable}", enough
    yield "taken by forwarders, past the batches", f"{verdict.forwarded} of {verdict.deliverable}", True


def _lateness(lateness: Lateness) -> str:
    values = f"{lateness.p50:,.0f} / {lateness.p99:,.0f} / {lateness.max:,.0f} ms"
    return f"{values} ({lateness.count})" if lateness.count else "-"
