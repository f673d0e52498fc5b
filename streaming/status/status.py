"""The status of an application: what waits, when it is due, and how far the job and the release are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import SPANS_MS
from streaming.monitor.estimate import WaitingInShard
from streaming.monitor.job_status import Merges
from streaming.status.broker import BrokerAnswer
from streaming.status.due_histogram import DueHistogram
from streaming.status.ready import ReadyShard


@dataclass(frozen=True)
class ShardStatus:
    """The messages that wait in one shard. Merged buckets do not belong to a shard."""

    shard: int
    ready: int
    mutable: int
    sealed: int
    next_due_ms: int | None


@dataclass(frozen=True)
class Status:
    """The status of an application. Instants are epoch ms.

    - `read_from`: whether the running job said what waits, or whether its checkpoint and its table were read.
    - `committed`: the last committed batch; None before the first.
    - `planned`: the batch that is running, or that the next start will replay.
    - `merged`: the messages in merged buckets.
    - `due`: the number of waiting messages in each span (`SPANS_MS`, `LATER`).
    - `merges`: of the running job; None if it did not say.
    """

    read_from: Literal["job", "storage"]
    checkpoint: str
    now_ms: int
    committed: PlannedBatch | None
    planned: PlannedBatch | None
    shards: list[ShardStatus]
    merged: int
    mutable_bytes: int
    sealed_bytes: int
    next_due_ms: int | None
    buckets: int
    segments: int
    due: dict[str, int]
    due_is_estimated: bool
    broker: BrokerAnswer
    merges: Merges | None = None


def shard_statuses(waiting: Iterable[WaitingInShard], ready: Iterable[ReadyShard]) -> list[ShardStatus]:
    """Return the waiting messages in each shard, including staged messages that are not released."""
    ready_of = {shard.shard: shard.dues_ms for shard in ready}
    statuses = []
    for own in waiting:
        dues_ms = ready_of.get(own.shard, ())
        next_due_ms = first_of(own.next_due_ms, *map(int, dues_ms[:1]))
        statuses.append(ShardStatus(own.shard, len(dues_ms), own.mutable, own.sealed, next_due_ms))
    return statuses


def first_of(*instants_ms: int | None) -> int | None:
    """Return the earliest of the instants that are known."""
    return min((instant_ms for instant_ms in instants_ms if instant_ms is not None), default=None)


def histogram_of(ready: Iterable[ReadyShard], now_ms: int) -> DueHistogram:
    """Return a histogram with a border at each end of `SPANS_MS`, counting staged messages that are not released."""
    histogram = DueHistogram(now_ms + span_ms for span_ms in SPANS_MS.values())
    for shard in ready:
        histogram.add_instants(shard.dues_ms)
    return histogram
