"""The metrics and the health of the job, from what its batches record."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from state.buckets.segments import Segment
from streaming.monitor.job_metrics import JobCounts, job_health
from streaming.monitor.server import registry_of

MINUTE_MS = 60_000


@dataclass
class Clock:
    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def scraped(counts: JobCounts) -> dict[str, float]:
    """Return the samples by name, with the value of the only label if there is one."""
    families = text_string_to_metric_families(generate_latest(registry_of(counts)).decode())
    return {
        ".".join([sample.name.removeprefix("delayline_"), *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def test_batches_add_up() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    counts.batch_done({"in": 5}, sealed=2, cancelled=1, mutable={0: 3, 1: 4}, cutoff_ms=1_000_060_000)
    clock.now_s += 10
    counts.batch_done({"in": 1, "other": 1}, sealed=0, cancelled=0, mutable={1: 0}, cutoff_ms=1_000_070_000)
    counts.took("state", 0.5)
    counts.took("state", 1.5)
    samples = scraped(counts)
    assert samples["read_records_total.in"] == 6
    assert samples["read_records_total.other"] == 1
    assert (samples["sealed_messages_total"], samples["cancelled_messages_total"]) == (2, 1)
    assert samples["waiting_messages.mutable"] == 3
    assert samples["handed_over_until_timestamp_seconds"] == 1_000_070
    assert samples["batch_done_timestamp_seconds"] == clock.now_s
    assert (samples["batch_seconds_count.state"], samples["batch_seconds_sum.state"]) == (2, 2.0)


def test_sealed_messages_count_by_when_they_are_due_every_few_seconds() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    now_ms = int(clock.now_s * 1000)

    def segment(bucket: int, first_ms: int, last_ms: int, count: int) -> Segment:
        return Segment(bucket, 0, 0, "p", now_ms + first_ms, now_ms + last_ms, count, count * 10)

    # Half of the first one within ten minutes.
    buckets = {1: [segment(1, 5 * MINUTE_MS, 15 * MINUTE_MS - 1, 100)], 2: [segment(2, 0, 0, 7)]}
    counts.count_sealed(buckets, merging=1, merges=3)
    samples = scraped(counts)
    assert samples["waiting_messages.sealed"] == 107
    assert samples["sealed_due_messages.1m"] == 7
    assert samples["sealed_due_messages.10m"] == 57
    assert samples["sealed_due_messages.366d"] == 107
    assert samples["sealed_next_due_timestamp_seconds"] == clock.now_s
    assert samples["sealed_last_due_timestamp_seconds"] == clock.now_s + 15 * 60 - 0.001
    assert (samples["sealed_buckets"], samples["merges_total"], samples["merges_running"]) == (2, 3, 1)
    clock.now_s += 1
    counts.count_sealed({}, merging=0, merges=4)
    assert scraped(counts)["sealed_buckets"] == 2
    clock.now_s += 5
    counts.count_sealed({}, merging=0, merges=4)
    assert scraped(counts)["sealed_buckets"] == 0
    assert "sealed_next_due_timestamp_seconds" not in scraped(counts)


def test_the_job_is_ready_while_batches_come_within_the_horizon_and_live_through_an_outage() -> None:
    clock = Clock()
    counts = JobCounts(clock)

    def health() -> tuple[bool, bool, list[str]]:
        state = job_health(counts, MINUTE_MS, 5 * MINUTE_MS, clock)
        return state.live, state.ready, state.reasons

    clock.now_s += 20
    assert health() == (True, False, ["no batch is done since the start, 20 s ago"])
    counts.batch_done({}, 0, 0, {}, 0)
    assert health() == (True, True, [])
    clock.now_s += 61
    assert health() == (True, False, ["no batch is done for 61 s"])
    clock.now_s += 15 * 60
    assert health()[0] is False
