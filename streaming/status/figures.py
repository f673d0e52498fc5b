"""The few figures of a status that `delayline status`, `delayline top` and the page show under the same words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from conf.durations import format_duration
from sinks.group.members import Member
from streaming.monitor.job_status import Merges
from streaming.status.broker import BrokerAnswer
from streaming.status.status import Status

_UNKNOWN = "unknown"
_NAME_WIDTH = 18


@dataclass(frozen=True)
class Figure:
    """A figure: its name, its value in words, and what else there is to say of it, or ""."""

    name: str
    value: str
    detail: str = ""

    @property
    def line(self) -> str:
        """The figure as a line of text."""
        return f"{self.name:<{_NAME_WIDTH}} {self.value}{'; ' if self.detail else ''}{self.detail}"


def figures(status: Status) -> Iterator[Figure]:
    """Yield the figures of a status; before the first batch those that the broker knows."""
    if status.committed is not None:
        ready, mutable, sealed = totals(status)
        places = f"{ready:,} ready, {mutable:,} mutable, {sealed:,} sealed"
        buckets = f"{counted(status.buckets, 'bucket')}, {counted(status.segments, 'segment')}"
        yield Figure("waiting", counted(ready + mutable + sealed, "message"), f"{places} in {buckets}")
        yield _next_due(status)
        yield _lateness(status)
    yield _input_lag(status.broker)
    if status.committed is not None:
        batch = status.committed
        yield Figure("last batch", f"began {ago(status, batch.clock_ms)}", f"number {batch.batch_id}")
        if status.merges is not None:
            yield _merges(status.merges, status.now_ms)
    yield from _processes(status.broker)
    yield from _lease(status.broker)


def totals(status: Status) -> tuple[int, int, int]:
    """Return how many messages are ready, mutable and sealed."""
    shards = status.shards
    return (
        sum(shard.ready for shard in shards),
        sum(shard.mutable for shard in shards),
        sum(shard.sealed for shard in shards) + status.merged,
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where that is right."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def ago(status: Status, instant_ms: int) -> str:
    """Return in words how long ago an instant was."""
    return f"{format_duration(max(0, status.now_ms - instant_ms))} ago"


def due_text(status: Status, instant_ms: int | None) -> str:
    """Return a due time, in words how far away it is; "-" for none."""
    if instant_ms is None:
        return "-"
    at = _instant(instant_ms)
    return f"{instant_ms} ms" if at is None else f"{at}, {_away(status, instant_ms)}"


def _next_due(status: Status) -> Figure:
    due_ms = status.next_due_ms
    if due_ms is None:
        return Figure("next due", "-")
    at = _instant(due_ms)
    return Figure("next due", f"{due_ms} ms") if at is None else Figure("next due", _away(status, due_ms), at)


def _away(status: Status, instant_ms: int) -> str:
    away_ms = instant_ms - status.now_ms
    return f"in {format_duration(away_ms)}" if away_ms >= 0 else f"{format_duration(-away_ms)} ago"


def _instant(instant_ms: int) -> str | None:
    try:
        return f"{datetime.fromtimestamp(instant_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    # As in `conf.instants`.
    except (OverflowError, ValueError, OSError):
        return None


def _lateness(status: Status) -> Figure:
    if status.broker.ready is None:
        return Figure("lateness", _UNKNOWN)
    late = [shard.lateness for shard in status.broker.ready if shard.at_ms is not None]
    if not late:
        return Figure("lateness", "-")
    p99_ms, largest_ms = max(each.p99_ms for each in late), max(each.max_ms for each in late)
    detail = f"largest {format_duration(largest_ms)}, of the latest shard in the last minute"
    return Figure("lateness", f"p99 {format_duration(p99_ms)}", detail)


def _input_lag(answer: BrokerAnswer) -> Figure:
    if answer.lag is None:
        return Figure("input lag", _UNKNOWN, answer.problem)
    held = sum(part.held for part in answer.lag)
    detail = f"{held:,} more behind open transactions of publishers" if held else ""
    return Figure("input lag", counted(sum(part.lag for part in answer.lag), "record"), detail)


def _merges(merges: Merges, now_ms: int) -> Figure:
    detail = f"{merges.finished:,} finished since the start"
    if merges.last is not None:
        since, took = format_duration(max(0, now_ms - merges.last.at_ms)), format_duration(merges.last.took_ms)
        detail += f", the last {since} ago: {merges.last.buckets} buckets in {took}"
    return Figure("merges", f"{merges.running:,} running", detail)


def _processes(answer: BrokerAnswer) -> Iterator[Figure]:
    if answer.ready_problem:
        yield Figure("release processes", _UNKNOWN, answer.ready_problem)
    elif answer.members is not None:
        yield Figure("release processes", _number(answer.members), _named(answer.members))
    if answer.forward_problem:
        yield Figure("forwarders", _UNKNOWN, answer.forward_problem)
    elif answer.lanes and answer.forwarders is not None:
        undecided = counted(sum(lane.undecided for lane in answer.lanes), "undecided record")
        detail = "; ".join(filter(None, (_named(answer.forwarders), undecided)))
        yield Figure("forwarders", _number(answer.forwarders), detail)


def _lease(answer: BrokerAnswer) -> Iterator[Figure]:
    if answer.holder is not None:
        lease = answer.holder
        since = _instant(lease.since_ms) or f"{lease.since_ms} ms"
        yield Figure("lease", f"process {lease.pid} on {lease.host}", f"delayline {lease.command}, since {since}")
    elif answer.lease_problem:
        yield Figure("lease", _UNKNOWN, answer.lease_problem)
    elif answer.lag is not None:
        yield Figure("lease", "not held")


def _number(members: Sequence[Member]) -> str:
    return f"{len(members)}" if members else "no process runs"


def _named(members: Sequence[Member]) -> str:
    return ", ".join(f"{member.name} on {member.host}" for member in members)
