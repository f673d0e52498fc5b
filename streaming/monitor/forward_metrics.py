"""The metrics and the health of a forwarder."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streaming.forward.process import ForwardProcess
from streaming.monitor.server import Health

# The process asks its group several times a second, but when it gives back a lane: it waits for the lane's transaction,
# which takes at most ten seconds (`sinks.lanes.writer`).
_STUCK_S = 40.0
# How long a lane may take from one step to the next: to open a writer it asks the brokers several times, and reads the
# newest claim for half a minute. Waits for brokers are steps of their own.
_STILL_S = 120.0


class ForwardMetrics(Collector):
    """Collects what a forwarder counts."""

    def __init__(self, process: ForwardProcess) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        forwarded = CounterMetricFamily(
            "delayline_forwarded_messages", "Messages staged by this forwarder.", labels=["lane"]
        )
        forwarding = GaugeMetricFamily(
            "delayline_lane_forwarding",
            "1 while the forwarder reads the lane, or if the lane has no input partitions; 0 while the job "
            "has it, while it waits for brokers or for the job, or while the forwarder cannot write.",
            labels=["lane"],
        )
        behind = GaugeMetricFamily(
            "delayline_lane_behind_records", "Unread input records of a lane, approximately.", labels=["lane"]
        )
        claimed = GaugeMetricFamily(
            "delayline_lane_last_claim_timestamp_seconds", "When the last claim was committed.", labels=["lane"]
        )
        # Copies, since other threads change them.
        lanes, counts = dict(self._process.lanes), self._process.counts
        for number, taken in sorted(counts.taken.copy().items()):
            forwarded.add_metric([str(number)], taken)
        for number, at_ms in sorted(counts.claimed_ms.copy().items()):
            claimed.add_metric([str(number)], at_ms / 1000)
        for number in sorted({*self._process.group.numbers, *lanes}):
            lane = lanes.get(number)
            forwarding.add_metric([str(number)], lane is not None and lane.is_forwarding)
            behind.add_metric([str(number)], 0 if lane is None else lane.behind)
        yield from (forwarded, forwarding, behind, claimed)


def forward_health(process: ForwardProcess) -> Health:
    """Return whether a forwarder makes progress, and whether it reads all of its lanes.

    During an outage of the brokers the process is live but not ready, because a restart would not help. If a lane
    hangs, the process is not live.
    """
    now_s = time.monotonic()
    # Copies, since another thread changes them.
    assigned, lanes = set(process.group.numbers), dict(process.lanes)
    reasons = []
    silent_s = now_s - process.group.polled_s
    if stuck := silent_s > _STUCK_S:
        reasons.append(f"the process has not polled its consumer group for {silent_s:.0f} s")
    if hanging := sorted(number for number, lane in lanes.items() if now_s - lane.stepped_s > _STILL_S):
        stuck = True
        reasons.append(f"lanes {hanging} hang: no progress for {_STILL_S:.0f} s")
    if waiting := sorted(assigned - {number for number, lane in lanes.items() if lane.is_forwarding}):
        reasons.append(
            f"lanes {waiting} are not read or not written: the job has them, or they wait for brokers or for the job"
        )
    if not assigned:
        reasons.append("the process has no lanes")
    if refused := process.group.refusals.sentence:
        reasons.append(refused)
    for name, theirs in process.group.strangers.items():
        reasons.append(f"consumer {name} is not a forwarder, and blocks lanes {theirs}")
    return Health(live=not stuck, ready=not stuck and not reasons, reasons=reasons)
