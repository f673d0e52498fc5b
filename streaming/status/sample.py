"""The data of the charts of the last hour: the numbers of one look at the job."""

from __future__ import annotations

from dataclasses import dataclass

from streaming.status.status import Status


@dataclass(frozen=True)
class Sample:
    """One look at the job.

    - `at_ms`: when, epoch ms
    - `waiting`, `ready`, `lag`: numbers of messages: waiting ones, the staged ones among them, and unread ones
    - `read`, `released`: how many were ever read from the input, and released; differences of two samples are rates
    - `p99_ms`, `max_ms`: the lateness of the shard that was latest in the minute before its last release
    - `buckets`, `segments`: of the sealed messages
    - `merging`: merges under way

    None is unknown: the broker or the job did not answer.
    """

    at_ms: int
    waiting: int
    ready: int
    lag: int | None
    read: int | None
    released: int | None
    p99_ms: int | None
    max_ms: int | None
    buckets: int
    segments: int
    merging: int | None


def sample_of(status: Status) -> Sample:
    """Return the numbers of a status."""
    lag, ready = status.broker.lag, status.broker.ready
    late = [shard.lateness for shard in ready or () if shard.at_ms is not None]
    return Sample(
        at_ms=status.now_ms,
        waiting=sum(shard.ready + shard.mutable + shard.sealed for shard in status.shards) + status.merged,
        ready=sum(shard.ready for shard in status.shards),
        lag=None if lag is None else sum(part.lag for part in lag),
        read=None if lag is None else sum(part.read_offset for part in lag),
        released=None if ready is None else sum(shard.released for shard in ready),
        p99_ms=max((lateness.p99_ms for lateness in late), default=None),
        max_ms=max((lateness.max_ms for lateness in late), default=None),
        buckets=status.buckets,
        segments=status.segments,
        merging=None if status.merges is None else status.merges.running,
    )
