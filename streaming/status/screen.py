"""The screen of `delayline top`: figures, charts, shards and problems, for 100 columns and 40 lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from conf.durations import format_duration
from conf.instants import instant
from conf.printable import printable
from streaming.status.figures import figures
from streaming.status.formats import span_text
from streaming.status.ready import ReadyShard
from streaming.status.sample import Sample
from streaming.status.status import ShardStatus, Status

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 18
_DUE_WIDTH = 42
_NAMES_WIDTH = 23
# The number of problems if the height is not bounded.
_MOST_PROBLEMS = 10
# The lines that shards leave to problems if it is bounded: a gap, a heading and one problem.
_LEAST_OF_PROBLEMS = 3


def screen_lines(
    status: Status, samples: Sequence[Sample], problems: Sequence[Mapping[str, Any]], width: int, height: int | None
) -> list[str]:
    """Return about `height` lines of up to `width` characters; if `height` is None, with all shards.

    `samples` are the samples up to `status`. `problems` are the newest problems of all processes, newest first.
    """
    charts = list(_charts(samples, width - _DUE_WIDTH - _NAMES_WIDTH - 2))
    lines = [*(figure.line for figure in figures(status)), ""]
    for due, chart in zip_longest(_due(status), charts, fillvalue=""):
        lines.append(f"{due:<{_DUE_WIDTH}}  {chart}".rstrip())
    room = None if height is None else max(1, height - len(lines) - 2 - _LEAST_OF_PROBLEMS)
    lines = [printable(line) for line in (*lines, "", *_shards(status, room))]
    left = None if height is None else height - len(lines)
    lines += problem_lines(problems, left)
    return [line[:width] for line in lines]


def problem_lines(problems: Sequence[Mapping[str, Any]], height: int | None) -> list[str]:
    """Return a heading and the newest of `problems`, in `height` lines; `_MOST_PROBLEMS` of them if that is None."""
    most = _MOST_PROBLEMS if height is None else max(1, height - 2)
    rows = []
    for each in problems[:most]:
        message = " ".join(each["message"].split())
        rows.append(printable(f"{instant(each['at_ms'])}  {each['level']:<8} {each['process']}  {message}"))
    return ["", "problems", *(rows or ["none"])]


def bar(share: float, width: int) -> str:
    """Return a bar of block characters, `share` of `width` characters long, and not empty if it is above 0."""
    eighths = min(width * 8, max(int(share > 0), round(share * width * 8)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return a line of block characters, from 0 to the largest value. Each stands for the largest of several values."""
    size = max(1, -(-len(values) // width))
    groups = [values[max(0, end - size) : end] for end in range(len(values), 0, -size)][::-1]
    tops = [max((value for value in group if value is not None), default=None) for group in groups]
    largest = max((top for top in tops if top is not None), default=0) or 1
    return "".join(" " if top is None else _LEVELS[round(top / largest * (len(_LEVELS) - 1))] for top in tops)


def _due(status: Status) -> Iterator[str]:
    yield f"{'due':>8}{'messages':>12}" + ("  (estimated)" if status.due_is_estimated else "")
    largest = max(1, *status.due.values())
    for name, count in status.due.items():
        yield f"{span_text(name):>8}{count:>12,}  {bar(count / largest, _BAR_WIDTH)}"


def _charts(samples: Sequence[Sample], width: int) -> Iterator[str]:
    if not samples or width < 1:
        return
    yield f"the last {format_duration(samples[-1].at_ms - samples[0].at_ms)}"
    drawn: list[tuple[str, Sequence[float | None], Callable[[float], str]]] = [
        ("lateness p99", [each.p99_ms for each in samples], format_duration),
        ("largest", [each.max_ms for each in samples], format_duration),
        ("read/s", _rates(samples, lambda sample: sample.read), _number),
        ("released/s", _rates(samples, lambda sample: sample.released), _number),
        ("waiting", [each.waiting for each in samples], _number),
        ("ready", [each.ready for each in samples], _number),
        ("input lag", [each.lag for each in samples], _number),
        ("buckets", [each.buckets for each in samples], _number),
        ("segments", [each.segments for each in samples], _number),
        ("merging", [each.merging for each in samples], _number),
    ]
    for name, values, written in drawn:
        newest = values[-1] if values else None
        yield f"{name:<13}{'-' if newest is None else written(newest):>9} {sparkline(values, width)}"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _rates(samples: Sequence[Sample], count: Callable[[Sample], int | None]) -> list[float | None]:
    """Return events a second between each two samples; none across a restart of what is counted."""
    rates: list[float | None] = []
    for before, after in pairwise(samples):
        first, last, ms = count(before), count(after), after.at_ms - before.at_ms
        known = first is not None and last is not None and last >= first and ms > 0
        rates.append((last - first) * 1000 / ms if known and first is not None and last is not None else None)
    return rates


def _shards(status: Status, room: int | None) -> Iterator[str]:
    """Yield a table of the shards. If not all fit, the shards with the largest lateness come first."""
    heads = ("shard", 6), ("ready", 9), ("mutable", 10), ("sealed", 12), ("next due", 12), ("last", 8)
    late_heads = ("in 1m", 8), ("p50", 7), ("p99", 7), ("largest", 8)
    yield "".join(f"{name:>{width}}" for name, width in (*heads, *late_heads)) + "  released by"
    released = {shard.shard: shard for shard in status.broker.ready or () if shard.at_ms is not None}
    shards = list(status.shards)
    room = len(shards) + 1 if room is None else room - bool(status.merged)
    if len(shards) > room:
        shards.sort(key=lambda each: -_p99_ms(released.get(each.shard)))
        shown = shards[: max(1, room - 1)]
    else:
        shown = shards
    for shard in shown:
        yield _shard(status, shard, released.get(shard.shard))
    if len(shown) < len(shards):
        yield f"   … and {len(shards) - len(shown):,} shards with less lateness"
    if status.merged:
        yield f"{'merged':>6}{'':>19}{status.merged:>12,}"


def _p99_ms(released: ReadyShard | None) -> int:
    return -1 if released is None else released.lateness.p99_ms


def _shard(status: Status, shard: ShardStatus, released: ReadyShard | None) -> str:
    away_ms = None if shard.next_due_ms is None else shard.next_due_ms - status.now_ms
    next_due = "-" if away_ms is None else ("" if away_ms < 0 else "in ") + format_duration(away_ms)
    waits = f"{shard.shard:>6}{shard.ready:>9,}{shard.mutable:>10,}{shard.sealed:>12,}{next_due:>12}"
    if released is None:
        return f"{waits}{'-':>8}"
    late = released.lateness
    times = "".join(
        f"{format_duration(ms):>{width}}" for ms, width in ((late.p50_ms, 7), (late.p99_ms, 7), (late.max_ms, 8))
    )
    last = format_duration(max(0, status.now_ms - (released.at_ms or 0)))
    return f"{waits}{last:>8}{late.messages:>8,}{times}  {released.member}"
