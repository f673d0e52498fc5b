"""Formats a status as one JSON object, or as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from conf.durations import format_duration
from sinks.group.members import Member
from sinks.internal_topics.lease_record import Lease
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import LATER, SPANS_MS
from streaming.monitor.job_status import Merges
from streaming.status.broker import BrokerAnswer
from streaming.status.status import Status

_BAR_WIDTH = 40


def as_json(status: Status) -> dict[str, Any]:
    """Return the status as JSON values. The keys are stable; the help of `delayline status` lists them."""
    ready, mutable, sealed = _totals(status)
    return {
        "read_from": status.read_from,
        "checkpoint": status.checkpoint,
        "now_ms": status.now_ms,
        "committed_batch": _batch(status, status.committed),
        "planned_batch": _batch(status, status.planned),
        "waiting": {
            "total": ready + mutable + sealed,
            "ready": ready,
            "mutable": mutable,
            "sealed": sealed,
            "merged": status.merged,
            "mutable_bytes": status.mutable_bytes,
            "sealed_bytes": status.sealed_bytes,
        },
        "next_due_ms": status.next_due_ms,
        "shards": [asdict(shard) for shard in status.shards],
        "sealed": {"buckets": status.buckets, "segments": status.segments},
        "merges": None if status.merges is None else asdict(status.merges),
        "due": status.due,
        "due_is_estimated": status.due_is_estimated,
        "input_lag": None
        if status.broker.lag is None
        else {
            "total": sum(part.lag for part in status.broker.lag),
            "held": sum(part.held for part in status.broker.lag),
            "partitions": [asdict(part) | {"lag": part.lag} for part in status.broker.lag],
        },
        "holder": _holder(status.broker.holder),
        "release": _release(status.broker),
        "forward": _forward(status.broker),
    }


def as_lines(status: Status) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield from _summary(status)
    if status.committed is None:
        return
    yield ""
    yield f"{'shard':>8}{'ready':>12}{'mutable':>14}{'sealed':>14}  next due"
    for shard in status.shards:
        counts = f"{shard.ready:>12,}{shard.mutable:>14,}{shard.sealed:>14,}"
        yield f"{shard.shard:>8}{counts}  {due_text(status, shard.next_due_ms)}"
    if status.merged:
        yield f"{'merged':>8}{'':>26}{status.merged:>14,}"
    yield from _release_lines(status)
    yield from _lane_lines(status.broker)
    yield ""
    yield f"{'due':>8}{'messages':>14}" + ("  (estimated)" if status.due_is_estimated else "")
    largest = max(1, *status.due.values())
    for name, count in status.due.items():
        bar = "#" * -(-count * _BAR_WIDTH // largest)
        yield f"{span_text(name):>8}{count:>14,}  {bar}".rstrip()
    if status.broker.lag and any(part.lag or part.held for part in status.broker.lag):
        yield ""
        yield f"{'lag':>8}{'held':>10}  input partition"
        for part in sorted(status.broker.lag, key=lambda part: (-part.lag, -part.held)):
            read = f"read up to {part.read_offset} of {part.end_offset}"
            yield f"{part.lag:>8,}{part.held:>10,}  {part.topic}/{part.partition}, {read}"


def _summary(status: Status) -> Iterator[str]:
    ready, mutable, sealed = _totals(status)
    committed, planned = status.committed, status.planned
    if committed is None:
        yield f"no batch is committed yet in {status.checkpoint}"
    else:
        yield f"checkpoint   {status.checkpoint}{' (as the running job says)' if status.read_from == 'job' else ''}"
        yield f"committed    batch {committed.batch_id}, started {ago(status, committed.clock_ms)}"
        yield f"cutoff       {due_text(status, committed.cutoff_ms or None)}: messages due before it are staged"
    if planned is not None:
        yield f"planned      batch {planned.batch_id}, started {ago(status, planned.clock_ms)}, not committed"
    if committed is not None:
        yield (
            f"waiting      {ready + mutable + sealed:,} messages: {ready:,} ready (staged, not released), "
            f"{mutable:,} in mutable buckets, {sealed:,} in {status.buckets:,} sealed buckets "
            f"({status.segments:,} segments)"
        )
        if status.merges is not None:
            yield f"merges       {merge_text(status.merges, status.now_ms)}"
        yield f"next due     {due_text(status, status.next_due_ms)}"
    yield from broker_lines(status.broker)


def merge_text(merges: Merges, now_ms: int) -> str:
    """Return in words how many merges run and were finished since the job's start, and the last one."""
    text = f"{merges.running:,} running, {merges.finished:,} finished since the job's start"
    if merges.last is None:
        return text
    since, took = format_duration(max(0, now_ms - merges.last.at_ms)), format_duration(merges.last.took_ms)
    return f"{text}; the last {since} ago: {merges.last.buckets} buckets in {took}"


def broker_lines(answer: BrokerAnswer) -> Iterator[str]:
    """Yield what the broker says: input lag, the lease, the release processes, and the forwarders."""
    if answer.lag is None:
        yield f"input lag    unknown: {answer.problem}"
    else:
        held = sum(part.held for part in answer.lag)
        behind = f", and {held:,} behind open transactions of publishers" if held else ""
        yield f"input lag    {sum(part.lag for part in answer.lag):,} messages{behind}"
    if answer.holder is not None:
        yield f"lease        {answer.holder.holder}"
    elif answer.lease_problem:
        yield f"lease        unknown: {answer.lease_problem}"
    elif answer.lag is not None:
        yield "lease        not held"
    if answer.ready_problem:
        yield f"release      unknown: {answer.ready_problem}"
    elif answer.members is not None:
        yield f"release      {_named(answer.members)}"
    if answer.forward_problem:
        yield f"forward      unknown: {answer.forward_problem}"
    elif answer.lanes and answer.forwarders is not None:
        undecided = sum(lane.undecided for lane in answer.lanes)
        yield f"forward      {_named(answer.forwarders)}; {undecided:,} records of {len(answer.lanes)} lanes undecided"


def _named(members: Sequence[Member]) -> str:
    names = ", ".join(f"{member.name} on {member.host}" for member in members)
    return f"{len(members)} processes: {names}" if names else "no process runs"


def _release_lines(status: Status) -> Iterator[str]:
    """Yield a table of who released each shard last, and how late."""
    shards = [shard for shard in status.broker.ready or [] if shard.at_ms is not None]
    if not shards:
        return
    yield ""
    yield f"{'shard':>8}{'messages/min':>14}{'p50':>9}{'p99':>9}{'largest':>9}  lateness of the last release"
    for shard in shards:
        late = shard.lateness
        times = "".join(f"{format_duration(ms):>9}" for ms in (late.p50_ms, late.p99_ms, late.max_ms))
        yield f"{shard.shard:>8}{late.messages:>14,}{times}  by {shard.member}, {ago(status, shard.at_ms or 0)}"


def _lane_lines(answer: BrokerAnswer) -> Iterator[str]:
    """Yield a table of who has each lane, and how far it is. A lane that the job has taken waits for batches."""
    if not answer.lanes:
        return
    yield ""
    yield f"{'lane':>8}{'undecided':>12}  newest claim by"
    for lane in answer.lanes:
        yield f"{lane.lane:>8}{lane.undecided:>12,}  {lane.owner or '-'}"


def _totals(status: Status) -> tuple[int, int, int]:
    shards = status.shards
    return (
        sum(shard.ready for shard in shards),
        sum(shard.mutable for shard in shards),
        sum(shard.sealed for shard in shards) + status.merged,
    )


def _release(answer: BrokerAnswer) -> dict[str, Any] | None:
    if answer.ready is None or answer.members is None:
        return None
    return {
        "processes": [_member(member, "shards") for member in answer.members],
        "shards": [
            {
                "shard": shard.shard,
                "ready": len(shard.dues_ms),
                "member": shard.member,
                "at_ms": shard.at_ms,
                "lateness": asdict(shard.lateness),
            }
            for shard in answer.ready
        ],
    }


def _forward(answer: BrokerAnswer) -> dict[str, Any] | None:
    if answer.lanes is None or answer.forwarders is None:
        return None
    return {
        "processes": [_member(member, "lanes") for member in answer.forwarders],
        "lanes": [asdict(lane) for lane in answer.lanes],
    }


def _member(member: Member, parts: str) -> dict[str, Any]:
    return {"name": member.name, "host": member.host, parts: member.numbers}


def _batch(status: Status, batch: PlannedBatch | None) -> dict[str, int] | None:
    if batch is None:
        return None
    return {
        "batch_id": batch.batch_id,
        "clock_ms": batch.clock_ms,
        "age_ms": status.now_ms - batch.clock_ms,
        "cutoff_ms": batch.cutoff_ms,
    }


def _holder(lease: Lease | None) -> dict[str, Any] | None:
    if lease is None:
        return None
    return {"host": lease.host, "pid": lease.pid, "command": lease.command, "since_ms": lease.since_ms}


def span_text(name: str) -> str:
    """Return a span of `SPANS_MS` as the tables name it."""
    return name if name == LATER or not SPANS_MS[name] else f"< {name}"


def ago(status: Status, instant_ms: int) -> str:
    """Return in words how long ago an instant was."""
    return f"{format_duration(max(0, status.now_ms - instant_ms))} ago"


def due_text(status: Status, instant_ms: int | None) -> str:
    """Return a due time, in words how far away it is; "-" for none."""
    if instant_ms is None:
        return "-"
    away_ms = instant_ms - status.now_ms
    relative = f"in {format_duration(away_ms)}" if away_ms >= 0 else f"{format_duration(-away_ms)} ago"
    try:
        instant = datetime.fromtimestamp(instant_ms // 1000, UTC)
    # As in `conf.instants`.
    except (OverflowError, ValueError, OSError):
        return f"{instant_ms} ms"
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC, {relative}"
