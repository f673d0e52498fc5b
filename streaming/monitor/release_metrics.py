"""The metrics and the health of a release process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from conf.kafka.clients import OPEN_TIMEOUT_S
from conf.rejected import Rejected
from sinks.release.counts import BOUNDS_MS
from sinks.release.process import ReleaseProcess
from sinks.release.shard import ShardRelease
from state.reasons import RESULTS
from streaming.monitor.server import Health

# The process asks its group several times a second, but when it gives back a shard in an outage: it waits until the
# shard's transactions have failed, each of which may take `release.transaction_timeout`, and so much longer.
_STUCK_S = 30.0
# How long a shard may take from one step to the next: to open a ring it asks the brokers twice, for as long as a
# transaction or a client's start may take each time, and then reads the position for half a minute. To fill or to
# commit a transaction takes one such timeout. Retries, and waits for a rate, are steps of their own, so neither
# `kafka.outage_limit` nor a rate counts.
_STEP_TIMEOUTS, _STEP_S = 3, 60.0
_REASONS = tuple(error.code for error in Rejected.__subclasses__())


class ReleaseMetrics(Collector):
    """Collects what a release process counts."""

    def __init__(self, process: ReleaseProcess, transaction_timeout_ms: int) -> None:
        self._process, self._longest_s = process, _longest_step_s(transaction_timeout_ms)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        yield from self._released()
        yield from self._shards()

    def _released(self) -> Iterator[Metric]:
        counts = self._process.counts
        lateness = HistogramMetricFamily(
            "delayline_delivery_lateness_seconds",
            "Time from a message's due time to the acknowledged commit of its transaction, by the clock of this host.",
            labels=["topic"],
        )
        delivered = CounterMetricFamily(
            "delayline_delivered_messages", "Messages delivered to an output topic.", labels=["topic"]
        )
        early = CounterMetricFamily(
            "delayline_early_messages", "Messages delivered before they were due. Always 0.", labels=["topic"]
        )
        bounds = [*(str(bound_ms / 1000) for bound_ms in BOUNDS_MS), "+Inf"]
        for topic, own in sorted(counts.topics().items()):
            below = accumulate(own.by_bound.tolist())
            lateness.add_metric([topic], list(zip(bounds, below, strict=True)), own.late_ms / 1000)
            delivered.add_metric([topic], own.messages)
            early.add_metric([topic], own.early)
        dead = CounterMetricFamily(
            "delayline_dead_letters",
            "Records written to the dead-letter topic, by the code of the error.",
            labels=["reason"],
        )
        # Each reason from zero on: of a series that begins with its first dead letters, Prometheus sees no increase.
        for reason, count in sorted((dict.fromkeys(_REASONS, 0) | counts.dead_letters()).items()):
            dead.add_metric([reason], count)
        answers = CounterMetricFamily(
            "delayline_cancel_answers", "Answers to cancels written to the results topic.", labels=["result"]
        )
        for result, count in (dict.fromkeys(RESULTS, 0) | counts.answers()).items():
            answers.add_metric([result], count)
        yield from (lateness, delivered, early, dead, answers)

    def _shards(self) -> Iterator[Metric]:
        backlog = GaugeMetricFamily(
            "delayline_ready_messages", "Staged messages that are not released, approximately.", labels=["shard"]
        )
        next_due = GaugeMetricFamily(
            "delayline_ready_next_due_timestamp_seconds",
            "Due time of the first staged message that is not released.",
            labels=["shard"],
        )
        committed = GaugeMetricFamily(
            "delayline_release_last_commit_timestamp_seconds",
            "When the last transaction was written that is known to be committed.",
            labels=["shard"],
        )
        releasing = GaugeMetricFamily(
            "delayline_shard_releasing",
            "1 while this process releases messages of the shard; 0 while it reads the ready log first, "
            "waits for brokers, or makes no progress, and of a shard that a foreign consumer holds.",
            labels=["shard"],
        )
        # Copies, since another thread changes them.
        shards = dict(self._process.shards)
        hanging = _hanging(shards, self._longest_s)
        # Nobody else reports a shard that a foreign consumer holds.
        held = {number for theirs in self._process.group.strangers.values() for number in theirs}
        for number in sorted({*self._process.assigned, *shards, *held}):
            goes_on = number in shards and shards[number].releasing and number not in hanging
            releasing.add_metric([str(number)], goes_on)
        for number, shard in sorted(shards.items()):
            label = [str(number)]
            backlog.add_metric(label, shard.backlog.messages)
            if shard.backlog.next_due_ms is not None:
                next_due.add_metric(label, shard.backlog.next_due_ms / 1000)
            position = shard.position
            if position is not None and position.at_ms:
                committed.add_metric(label, position.at_ms / 1000)
        yield from (releasing, backlog, next_due, committed)


def release_health(process: ReleaseProcess, transaction_timeout_ms: int) -> Health:
    """Return whether a release process makes progress, and whether messages of all of its shards go out.

    During an outage of the brokers the process is live but not ready, because a restart would not help. If a shard
    hangs, the process is not live, even while it still polls its group.
    """
    silent_s = time.monotonic() - process.group.polled_s
    # Copies, since another thread changes them.
    assigned, shards = set(process.assigned), dict(process.shards)
    releasing = {number for number, shard in shards.items() if shard.releasing}
    reasons = []
    if stuck := silent_s > transaction_timeout_ms / 1000 + _STUCK_S:
        reasons.append(f"the process has not polled its consumer group for {silent_s:.0f} s")
    longest_s = _longest_step_s(transaction_timeout_ms)
    if hanging := _hanging(shards, longest_s):
        stuck = True
        reasons.append(f"shards {hanging} hang: no progress for {longest_s:.0f} s")
    if waiting := sorted(assigned - releasing):
        reasons.append(f"shards {waiting} release no messages: they read their ready log first, or wait for brokers")
    if not assigned:
        reasons.append("the process has no shards")
    if refused := process.group.refusals.sentence:
        reasons.append(refused)
    for name, theirs in process.group.strangers.items():
        reasons.append(f"consumer {name} is not a release process, and blocks shards {theirs}")
    return Health(live=not stuck, ready=not stuck and not reasons, reasons=reasons)


def _longest_step_s(transaction_timeout_ms: int) -> float:
    return _STEP_TIMEOUTS * max(transaction_timeout_ms / 1000, OPEN_TIMEOUT_S) + _STEP_S


def _hanging(shards: Mapping[int, ShardRelease], longest_s: float) -> list[int]:
    return sorted(number for number, shard in shards.items() if shard.still_s > longest_s)
