"""The model of cost: what a load takes, computed from the settings and from constants that were measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from conf.settings import Settings
from state.buckets.merge import SLICE_BYTES, SLICE_MESSAGES, most_buckets
from state.group_keys import state_partitions

# Each constant was measured on two cores (`python -m benchmarks scale`), at values that do not compress.
# The overhead of a message on disk, in bytes: due time, id, and its share of the index.
_STORED_OVERHEAD = 15
# The overhead of a message in memory, in bytes. The limits of buckets and segments count it.
_ARROW_OVERHEAD = 100
# Bytes of a segment in the driver.
_SEGMENT_BYTES = 250
_INGEST_PER_CORE = 40_000
_RELEASE_PER_PROCESS = 120_000
_JOB_MB = 3_800
_RELEASE_MB = 120
_RESTART_S = 27
# A file that a merge replaced, or that is staged, stays for so long: until the vacuum after its retention time.
_KEPT_S = 2 * 3600
# A batch takes in what arrived while the one before it ran.
_BATCH_S = 1.0
# The share of a bucket's threshold that a seal leaves in the mutable bucket.
_KEPT_SHARE = 0.25


@dataclass(frozen=True)
class Load:
    """A load: `rate` messages/s, due evenly from now to `spread_s` later, each of `size` bytes with key and headers.

    `replication` is the replication factor of the topics, and `retention_s` how long the input topics keep a record.
    """

    rate: float
    spread_s: float
    size: int
    replication: int = 3
    retention_s: float = 7 * 86_400

    @property
    def waiting(self) -> float:
        """How many messages wait once the load has lasted for its spread: the mean delay is half of it."""
        return self.rate * self.spread_s / 2


@dataclass(frozen=True)
class Capacity:
    """The resources for a load. Sizes are in bytes. Fields named `most_` are bounds, not estimates.

    - `waiting`: messages that wait
    - `stored`: of the live files of the table
    - `disk`: of all its files, with those that merges have replaced and no vacuum has removed
    - `seal_messages`: messages that one seal writes
    - `rewrites`: how often a message is written again while it waits
    - `most_buckets`, `most_files`, `most_segments`: in the table, when no merge is behind
    - `segments`: expected
    - `metadata`: of the segments in the driver
    - `job_memory`: of driver and executor in one process tree, without release processes
    - `release_memory`: of one release process, with all that it may hold
    - `cores`: for taking in the load
    - `release_processes`: for releasing it as fast as it comes
    - `broker_write`: bytes/s to all replicas
    - `broker_disk`: of input topics and ready log, all replicas
    - `restart_s`: from the death of the job to its first batch, in seconds
    """

    waiting: int
    stored: int
    disk: int
    seal_messages: int
    rewrites: float
    most_buckets: int
    most_files: int
    most_segments: int
    segments: int
    metadata: int
    job_memory: int
    release_memory: int
    cores: float
    release_processes: int
    broker_write: int
    broker_disk: int
    restart_s: float


def capacity_of(load: Load, settings: Settings) -> Capacity:
    """Return the resources for `load` with these settings, once it has lasted for its spread."""
    bucket, horizon_s = settings.bucket, settings.clock.horizon / 1000
    in_memory = load.size + _ARROW_OVERHEAD
    # A mutable bucket is sealed at its threshold, or by each batch if more arrive in one.
    threshold = min(bucket.max_messages, bucket.max_bytes / in_memory) * (1 - _KEPT_SHARE)
    seal_messages = max(1.0, threshold, load.rate * _BATCH_S)
    # Messages due within the horizon are staged, and the nearest of the others wait in the mutable buckets.
    near = load.rate * min(load.spread_s, horizon_s) + threshold * bucket.shards / 2
    sealed = max(0.0, load.waiting - near)
    stored_each = load.size + _STORED_OVERHEAD
    stored, seal = sealed * stored_each, seal_messages * stored_each
    levels = max(0.0, math.log(max(1.0, stored / seal), bucket.fan_in))
    rewrites = levels if sealed else 0.0
    segment_messages = min(bucket.max_messages, max(1.0, bucket.max_bytes / in_memory))
    slice_messages = min(SLICE_MESSAGES, SLICE_BYTES / in_memory)
    buckets = most_buckets(round(sealed * in_memory), bucket.fan_in) if sealed else 0
    slices = sealed / slice_messages
    most_segments = sealed / segment_messages + slices + buckets * (bucket.shards + 1)
    written = load.rate * stored_each * (1 + rewrites)
    return Capacity(
        waiting=round(load.waiting),
        stored=round(stored),
        # A merge of the largest buckets writes them once more before it removes them.
        disk=round(2 * stored + written * min(_KEPT_S, load.spread_s)) if sealed else 0,
        seal_messages=round(seal_messages),
        rewrites=round(rewrites, 1),
        most_buckets=buckets,
        # A sealed bucket has two files for each state partition; a merged one two for each slice, the last of which may
        # be small, and a marker.
        most_files=math.ceil(buckets * (2 * state_partitions(bucket.shards) + 3) + 2 * slices),
        most_segments=math.ceil(most_segments),
        segments=math.ceil(sealed / segment_messages),
        metadata=math.ceil(sealed / segment_messages) * _SEGMENT_BYTES,
        job_memory=_JOB_MB * 2**20 + math.ceil(most_segments) * _SEGMENT_BYTES,
        release_memory=_RELEASE_MB * 2**20 + settings.release.max_bytes,
        cores=round(load.rate / _INGEST_PER_CORE, 2),
        release_processes=max(1, math.ceil(load.rate / _RELEASE_PER_PROCESS)),
        # Into the input, the ready log and the output.
        broker_write=round(3 * load.rate * load.size * load.replication),
        broker_disk=round(load.rate * load.size * load.replication * (load.retention_s + horizon_s)),
        restart_s=_RESTART_S,
    )
