"""Planning: the CPU that one shard's release takes to plan its transactions, by how far apart messages are due.

It needs no broker and no Spark. Chunks are made as the job stages them, and `Pending` plans due messages by slice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.aims import Figures, figure, ratio
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.waiting import say
from conf.load import load_settings
from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import ChunkSummary, RecordHeaders, chunk_record, summary_of
from sinks.ready_log.stage import ready_chunks
from sinks.release.pending import Pending
from sinks.release.room import Limits
from state.kinds import MESSAGE
from state.message import HEADERS, MESSAGE_SCHEMA
from state.order import in_order

# The load of one shard: half of the rate of `lateness`.
RATE, SHORTEST_S = 500, 3.0
NEAR, MINUTE, FAR = "due after 3-20 s", "due after 3-60 s", "due after 3-300 s"
_LONGEST_S = {NEAR: 20.0, MINUTE: 60.0, FAR: 300.0}
# The time between two batches. Each stages the messages, new or waiting, that are due within the horizon.
_BATCH_S = 0.7
_TOTAL_S, _LEAST_S = 240.0, 20.0
# Before that, fewer chunks than later are pending.
_FROM = 0.5
_TRANSACTION_BYTES = 8 * 1024 * 1024
MOST_OF_NEAR = 2.0


class _Chunk(NamedTuple):
    at_s: float
    summary: ChunkSummary
    payload: bytes


def measure(scale: float) -> Outcome:
    """Plan each load for its time, on a clock of its own: as fast as it goes."""
    figures = {case: _case(case, max(_LEAST_S, _TOTAL_S * scale)) for case in _LONGEST_S}
    series = {case: [[of_case["cpu"]]] for case, of_case in figures.items()}
    return Outcome("planning", f"{RATE} messages/s of one shard", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: messages due far apart cost little more than messages due soon."""
    near = figure(figures, NEAR, "cpu")
    return [
        Aim(f"CPU, {case}, of that {NEAR}", ratio(figure(figures, case, "cpu"), near), MOST_OF_NEAR)
        for case in (MINUTE, FAR)
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the CPU by case."""
    drawn, axes = figure_of(outcome)
    axes.bar(list(outcome.series), [cpu for ((cpu,),) in outcome.series.values()])
    axes.set(ylabel="cores")
    return drawn


def _case(case: str, total_s: float) -> dict[str, Any]:
    say(f"{case}: {total_s:.0f} s of {RATE} messages/s")
    release = load_settings(None, [], environ={}).release
    limits = Limits(release.transaction_messages, _TRANSACTION_BYTES, release.slice)
    pending, chunks = Pending(Position()), list(_chunks(_LONGEST_S[case], total_s))
    cpu_s = longest_s = 0.0
    planned = steps = offset = most_open = 0
    for now_ms in range(0, int(total_s * 1000), release.slice):
        while offset < len(chunks) and chunks[offset].at_s * 1000 <= now_ms:
            pending.add(Place(Log.READY, offset), chunks[offset].summary, chunks[offset].payload)
            offset += 1
        begun_s, count = time.process_time(), 0
        while (transaction := pending.plan(now_ms, now_ms + release.lead, limits)) is not None:
            count += transaction.messages.num_rows
        took_s = time.process_time() - begun_s
        if now_ms >= total_s * _FROM * 1000:
            cpu_s, longest_s, planned, steps = cpu_s + took_s, max(longest_s, took_s), planned + count, steps + 1
            most_open = max(most_open, offset - pending.position.ready.lowest)
    return {
        "messages": planned,
        "cpu": round(cpu_s / (steps * release.slice / 1000), 4),
        "us_each": round(cpu_s / planned * 1e6, 1),
        "longest_ms": round(longest_s * 1000, 1),
        "most_chunks": most_open,
    }


def _chunks(longest_s: float, total_s: float) -> Iterator[_Chunk]:
    """Yield the chunks that the batches stage, on a clock that begins at 0."""
    chance = np.random.default_rng(1)
    horizon_s = load_settings(None, [], environ={}).clock.horizon / 1000
    waiting, first = np.zeros(0), 0
    for now_s in np.arange(0, total_s, _BATCH_S).tolist():
        dues_s = now_s + chance.uniform(SHORTEST_S, longest_s, int(RATE * _BATCH_S))
        until_s = now_s + horizon_s
        for own_s in (dues_s[dues_s < until_s], waiting[waiting < until_s]):
            messages = _messages((own_s * 1000).astype(np.int64), first)
            first += len(own_s)
            for chunk in ready_chunks(messages, int(now_s * 1000)):
                value, headers = chunk_record(chunk)
                yield _Chunk(now_s + _BATCH_S, _summary(headers), value)
        waiting = np.concatenate([waiting[waiting >= until_s], dues_s[dues_s >= until_s]])


def _summary(headers: RecordHeaders) -> ChunkSummary:
    return summary_of(headers, "a chunk of the benchmark")


def _messages(dues_ms: np.ndarray, first: int) -> pa.Table:
    count = len(dues_ms)
    numbers = np.arange(first, first + count)
    headers = [[{"key": "trace", "value": b"%d" % n}, {"key": "deliver-at", "value": b"%d" % n}] for n in numbers]
    columns = {
        "deliver_at_ms": dues_ms,
        "kind": np.full(count, MESSAGE),
        "topic": ["in"] * count,
        "partition": numbers % 2,
        "offset": numbers,
        "timestamp_ms": dues_ms,
        "output_topic": ["out"] * count,
        "output_partition": numbers % 2,
        "error_code": pa.nulls(count),
        "error_text": pa.nulls(count),
        "key": [b"key-%d" % number for number in numbers % 100],
        "value": [b"%0100d" % number for number in numbers],
        "headers": pa.array(headers, HEADERS),
    }
    return in_order(pa.table(columns).cast(MESSAGE_SCHEMA))
