"""Formats a status as one JSON object, or as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from conf.durations import format_duration
from sinks.group.members import Member
from sinks.internal_topics.lease_record import Lease
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import LATER, SPANS_MS
from streaming.status.broker import BrokerAnswer
from streaming.status.figures import Figure, ago, due_text, figures, totals
from streaming.status.status import Status

_BAR_WIDTH = 40


def as_json(status: Status) -> dict[str, Any]:
    """Return the status as JSON values. The keys are stable; the help of `delayline status` lists them."""
    ready, mutable, sealed = totals(status)
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
    """Yield the figures, and facts that only `delayline status` shows: source of the status, cutoff, planned batch."""
    committed, planned = status.committed, status.planned
    if committed is None:
        yield f"no batch is committed yet in {status.checkpoint}"
    else:
        source = "the running job" if status.read_from == "job" else "the checkpoint and the table"
        yield Figure("checkpoint", status.checkpoint, f"this is from {source}").line
    yield from (figure.line for figure in figures(status))
    if committed is not None:
        cutoff = due_text(status, committed.cutoff_ms or None)
        yield Figure("cutoff", cutoff, "messages due before it are staged").line
    if planned is not None:
        detail = f"began {ago(status, planned.clock_ms)}, is not committed"
        yield Figure("planned batch", f"number {planned.batch_id}", detail).line


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
