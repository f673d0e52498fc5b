"""The status of a running job, made up."""

from __future__ import annotations

import numpy as np

from sinks.group.members import Member
from sinks.internal_topics.lease_record import Lease
from sinks.internal_topics.position import Lateness
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import LATER, SPANS_MS
from streaming.monitor.job_status import LastMerge, Merges
from streaming.status.broker import BrokerAnswer
from streaming.status.input_lag import PartitionLag
from streaming.status.lanes import LaneStatus
from streaming.status.ready import ReadyShard
from streaming.status.status import ShardStatus, Status

NOW_MS = 1_800_000_000_000


def status_of(shards: int = 2) -> Status:
    """Return the status of a job with `shards` shards."""
    ready = [
        ReadyShard(number, np.array([NOW_MS]), 90, "pod-7", NOW_MS - 2_000, Lateness(1_234, 5, 10 * number, 900))
        for number in range(shards)
    ]
    return Status(
        read_from="job",
        checkpoint="/data/checkpoint",
        now_ms=NOW_MS,
        committed=PlannedBatch(7, NOW_MS - 2_100, NOW_MS, {}),
        planned=None,
        shards=[ShardStatus(number, 1, 10, 100, NOW_MS + 5_000) for number in range(shards)],
        merged=1_000,
        mutable_bytes=1,
        sealed_bytes=1,
        next_due_ms=NOW_MS + 5_000,
        buckets=17,
        segments=20,
        due=dict.fromkeys([*SPANS_MS, LATER], 0) | {"1h": 40, "30d": 20, "366d": 1},
        due_is_estimated=True,
        broker=BrokerAnswer(
            [PartitionLag("in", 0, 100, 103, 0)],
            Lease(1, "node-1", 2155, "run", NOW_MS, 10_000),
            ready=ready,
            members=[Member("pod-7", "node-2", [0, 1], False)],
            lanes=[LaneStatus(0, "pod-8", 2), LaneStatus(1, "job", 1_500)],
            forwarders=[Member("pod-8", "node-2", [0], False), Member("pod-9", "node-3", [1], False)],
        ),
        merges=Merges(1, 3, 4.5, LastMerge(NOW_MS - 60_000, 1_500, 16)),
    )
