"""Made-up samples of a job in an hour: for the tests of the page, and for its picture in the docs."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sinks.group.members import Member
from sinks.internal_topics.lease_record import Lease
from sinks.internal_topics.position import Lateness
from state.checkpoint.planned_batch import PlannedBatch
from state.claims import JOB
from state.due_spans import LATER, SPANS_MS
from streaming.monitor.job_status import LastMerge, Merges
from streaming.status.broker import BrokerAnswer
from streaming.status.figures import figures
from streaming.status.formats import as_json
from streaming.status.input_lag import PartitionLag
from streaming.status.lanes import LaneStatus
from streaming.status.ready import ReadyShard
from streaming.status.sample import Sample
from streaming.status.status import ShardStatus, Status

_EVERY_MS = 5_000
_DUE = (0, 5_120, 24_800, 96_400, 210_300, 388_000, 512_700, 1_204_000, 903_500, 655_100, 402_700, 0)

_LANES = [LaneStatus(0, "delayline-forward-0", 12), LaneStatus(1, JOB, 1_840)]
_FORWARDERS = [Member("delayline-forward-0", "delayline-forward-0", [0], False)]


class SampledHistory:
    """Stands in for `streaming.web.history.History`.

    `lanes` and `forwarders` are fields of the status. By default, one of two lanes has a forwarder.
    """

    def __init__(self, lanes: list[LaneStatus] | None = _LANES, forwarders: list[Member] | None = _FORWARDERS) -> None:
        self._lanes, self._forwarders = lanes, forwarders

    def now(self, since_ms: int) -> dict[str, Any]:
        """Return a status of now, the samples after `since_ms`, and problems."""
        now_ms = time.time_ns() // 1_000_000
        first = now_ms // _EVERY_MS - 700
        status = _status(now_ms)
        status = replace(status, broker=replace(status.broker, lanes=self._lanes, forwarders=self._forwarders))
        samples = [_sample(number) for number in range(first, now_ms // _EVERY_MS)]
        problems = [
            (95_000, "delayline-release-1", "Kafka does not answer (shard 1): Local: Timed out; trying again"),
            (96_000, "job", "batch 81203: waited 1.4 s for merges to catch up"),
            (1_900_000, "delayline-release-0", "messages for orders-old become dead letters: the topic is gone"),
        ]
        return {
            "status": as_json(status),
            "figures": [asdict(figure) for figure in figures(status)],
            "samples": [asdict(sample) for sample in samples if sample.at_ms > since_ms],
            "problems": [
                {"at_ms": now_ms - ago_ms, "process": process, "level": "WARNING", "message": message}
                for ago_ms, process, message in problems
            ],
        }


def _sample(number: int) -> Sample:
    wave, ripple = math.sin(number / 90), math.sin(number / 11)
    return Sample(
        at_ms=number * _EVERY_MS,
        waiting=round(4_402_620 + 60_000 * wave + 900 * ripple),
        ready=round(29_900 + 4_000 * wave + 300 * ripple),
        lag=max(0, round(900 * wave + 600 * ripple)),
        read=round(number * 5_200 + 150_000 * wave),
        released=round(number * 5_100 + 90_000 * math.sin(number / 90 - 1)),
        p99_ms=round(24 + 4 * ripple + 3 * wave),
        max_ms=round(46 + 9 * ripple + (180 if number % 211 < 6 else 0)),
        buckets=36 + number % 48 // 3,
        segments=260 + number % 48,
        merging=int(number % 48 > 40),
    )


def _status(now_ms: int) -> Status:
    members = [Member(f"delayline-release-{n}", f"delayline-release-{n}", [2 * n, 2 * n + 1], False) for n in (0, 1)]
    ready = [
        ReadyShard(
            shard,
            now_ms + np.arange(7_400 + 61 * shard),
            released=10**6,
            member=members[shard // 2].name,
            at_ms=now_ms - 40 * shard - 21,
            lateness=Lateness(76_000 + 811 * shard, 11 + shard, 23 + shard, 40 + 3 * shard),
        )
        for shard in range(4)
    ]
    shards = [
        ShardStatus(each.shard, len(each.dues_ms), 12_400 + 37 * each.shard, 310_200 - 911 * each.shard, now_ms + 12)
        for each in ready
    ]
    own = sum(shard.ready + shard.mutable + shard.sealed for shard in shards)
    return Status(
        read_from="job",
        checkpoint="/var/lib/delayline/checkpoint",
        now_ms=now_ms,
        committed=PlannedBatch(81_207, now_ms - 730, now_ms + 59_000, {}),
        planned=None,
        shards=shards,
        merged=sum(_DUE) - own,
        mutable_bytes=6_500_000,
        sealed_bytes=570_000_000,
        next_due_ms=now_ms + 12,
        buckets=38,
        segments=271,
        due=dict(zip([*SPANS_MS, LATER], _DUE, strict=True)),
        due_is_estimated=True,
        broker=BrokerAnswer(
            [PartitionLag("delayline-in", 0, 9_000_000, 9_000_412, 0)],
            Lease(3, "delayline-job", 7, "run", now_ms, 10_000),
            ready=ready,
            members=members,
        ),
        merges=Merges(1, 412, 918.0, LastMerge(now_ms - 94_000, 3_100, 16)),
    )
