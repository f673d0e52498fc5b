"""The metrics and the health of the job, from what its batches record."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from conf.durations import parse_duration_ms
from conf.load import load_settings
from state.buckets.catalog import SegmentCatalog
from state.buckets.segments import ANY_SHARD, Segment
from state.checkpoint.planned_batch import PlannedBatch
from state.due_spans import SPANS_MS, DueRun
from streaming.monitor.estimate import MutableDues
from streaming.monitor.job_health import job_health
from streaming.monitor.job_metrics import JobCounts
from streaming.monitor.job_status import JobStatus, Merges
from streaming.monitor.server import registry_of
from streaming.monitor.table_state import TableState
from streaming.monitor.waiting_metrics import WITHIN_S

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


def batch(number: int, cutoff_ms: int = 0) -> PlannedBatch:
    return PlannedBatch(number, clock_ms=cutoff_ms - MINUTE_MS, cutoff_ms=cutoff_ms, offsets={"in": {"0": number}})


def test_batches_add_up() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    counts.batch_done(batch(0, 1_000_060_000), {"in": 5}, {"in": 4}, sealed=2, cancelled=1, mutable={})
    clock.now_s += 10
    counts.batch_done(batch(1, 1_000_070_000), {"in": 1, "other": 1}, {"other": 1}, sealed=0, cancelled=0, mutable={})
    counts.took("state", 0.5)
    counts.took("state", 1.5)
    samples = scraped(counts)
    assert samples["read_records_total.in"] == 6
    assert samples["read_records_total.other"] == 1
    assert (samples["accepted_messages_total.in"], samples["accepted_messages_total.other"]) == (4, 1)
    assert (samples["sealed_messages_total"], samples["cancelled_messages_total"]) == (2, 1)
    assert samples["staged_until_timestamp_seconds"] == 1_000_070
    assert samples["batch_done_timestamp_seconds"] == clock.now_s
    assert (samples["batch_seconds_count.state"], samples["batch_seconds_sum.state"]) == (2, 2.0)


def test_what_waits_counts_by_when_it_is_due() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    now_ms = int(clock.now_s * 1000)
    bounds = MutableDues([DueRun(now_ms + 30_000, now_ms + 30_000, 5)], bytes=50)
    counts.batch_done(batch(0, cutoff_ms=now_ms), {}, {}, 0, 0, mutable={0: bounds})
    counts.reported(0, mutable_buckets=1, lag={"in": 7})

    def segment(bucket: int, first_ms: int, last_ms: int, count: int) -> Segment:
        return Segment(bucket, 0, 0, "p", now_ms + first_ms, now_ms + last_ms, count, count * 10)

    # Half of the first one is due within ten minutes. The last one is staged.
    segments = [
        segment(1, 5 * MINUTE_MS, 15 * MINUTE_MS - 1, 100), segment(2, 0, 0, 7), segment(3, -MINUTE_MS, -1, 3),
    ]  # fmt: skip
    counts.table_now(TableState(segments, buckets=3, merges=Merges(1, 3, 1.5), size=(700, 2)))
    samples = scraped(counts)
    assert (samples["waiting_messages.sealed"], samples["waiting_messages.mutable"]) == (107, 5)
    assert samples["sealed_bytes"] == 1070
    assert samples["metadata_bytes"] == SegmentCatalog(segments).nbytes
    assert samples["input_lag_records.in"] == 7
    assert samples["due_messages.1m"] == 12
    assert samples["due_messages.10m"] == 62
    assert list(WITHIN_S) == [span for span, ms in SPANS_MS.items() if ms >= 60_000]
    assert samples["due_messages.366d"] == 112
    assert samples["next_due_timestamp_seconds"] == clock.now_s
    assert samples["last_due_timestamp_seconds"] == clock.now_s + 15 * 60 - 0.001
    assert (samples["sealed_buckets"], samples["merges_total"], samples["merges_running"]) == (3, 3, 1)
    assert (samples["merging_seconds_total"], samples["table_bytes"], samples["table_files"]) == (1.5, 700, 2)
    counts.batch_done(batch(1, cutoff_ms=now_ms + 16 * MINUTE_MS), {}, {}, 0, 0, {0: MutableDues((), 0)})
    samples = scraped(counts)
    assert (samples["waiting_messages.sealed"], samples["waiting_messages.mutable"]) == (0, 0)
    assert "next_due_timestamp_seconds" not in samples


def test_each_open_lane_says_whether_the_job_has_taken_it_over() -> None:
    counts = JobCounts(Clock())
    assert not [name for name in scraped(counts) if "lane" in name]
    counts.lanes_now({0: True, 1: False})
    assert (scraped(counts)["lane_taken_over.0"], scraped(counts)["lane_taken_over.1"]) == (1, 0)
    counts.lanes_now({0: False, 1: False})
    assert (scraped(counts)["lane_taken_over.0"], scraped(counts)["lane_taken_over.1"]) == (0, 0)


def test_the_job_says_nothing_of_mutable_buckets_before_it_knows_all() -> None:
    counts = JobCounts(Clock())
    one = {1: MutableDues([DueRun(5, 9, 4)], bytes=40)}
    counts.table_now(TableState())
    counts.batch_done(batch(7), {}, {}, 0, 0, one)
    assert counts.status("app", 2) is None
    # The state has two: one of them was filled before this start.
    counts.reported(7, mutable_buckets=2, lag={"in": 7})
    assert counts.status("app", 2) is None
    assert "waiting_messages.mutable" not in scraped(counts)
    # Spark reports batch 8 when batch 9 is done already, and has changed both.
    counts.batch_done(batch(8), {}, {}, 0, 0, {0: MutableDues([DueRun(5, 5, 1)], bytes=10)})
    counts.batch_done(batch(9), {}, {}, 0, 0, {0: MutableDues((), 0)})
    counts.reported(8, mutable_buckets=2, lag={"in": 7})
    assert scraped(counts)["waiting_messages.mutable"] == 4


def test_what_is_read_of_the_state_holds_for_mutable_buckets_of_which_no_batch_has_told() -> None:
    counts = JobCounts(Clock())
    counts.table_now(TableState())
    counts.batch_done(batch(7), {}, {}, 0, 0, {1: MutableDues([DueRun(5, 9, 4)], bytes=40)})
    # The state of a batch is not read before the batch is committed.
    assert counts.batch_of_unknown_state is None
    counts.reported(7, mutable_buckets=2, lag={})
    assert counts.batch_of_unknown_state == 7
    counts.batch_done(batch(8), {}, {}, 0, 0, {1: MutableDues([DueRun(5, 9, 3)], bytes=30)})
    counts.state_read({0: MutableDues([DueRun(6, 6, 1)], bytes=10), 1: MutableDues([DueRun(5, 9, 4)], bytes=40)})
    assert counts.batch_of_unknown_state is None
    assert scraped(counts)["waiting_messages.mutable"] == 4
    status = counts.status("app", 2)
    assert status is not None
    assert [shard.mutable for shard in status.shards] == [1, 3]


def test_the_status_has_what_waits_and_survives_json() -> None:
    clock = Clock()
    counts, now_ms = JobCounts(clock), int(clock.now_s * 1000)
    counts.recovered("/c")
    counts.batch_begun(batch(0, now_ms))
    counts.batch_done(batch(0, now_ms), {}, {}, 0, 0, {1: MutableDues([DueRun(now_ms + 5, now_ms + 5, 4)], bytes=40)})
    merged = Segment(0, ANY_SHARD, 0, "p", now_ms + 20_000, now_ms + 20_000, count=9, bytes=90)
    counts.table_now(TableState([merged], buckets=1))
    counts.reported(0, mutable_buckets=1, lag={"in": 7})
    status = counts.status("app", 2)
    assert status is not None
    assert (status.checkpoint, status.done, status.running) == ("/c", batch(0, now_ms), None)
    assert status.next_due_ms == now_ms + 5
    assert [(shard.shard, shard.mutable, shard.sealed) for shard in status.shards] == [(0, 0, 0), (1, 4, 0)]
    assert (status.merged, status.sealed_bytes, status.mutable_bytes) == (9, 90, 40)
    assert {span: count for span, count in status.due.items() if count} == {"10s": 4, "1m": 9}
    counts.batch_begun(batch(1, now_ms))
    again = counts.status("app", 2)
    assert again is not None
    assert again.running == batch(1, now_ms)
    assert JobStatus.from_json(again.to_json()) == again


def _health(counts: JobCounts, clock: Clock, *overrides: str) -> tuple[bool, bool, list[str]]:
    settings = load_settings(None, overrides, environ={})
    state = job_health(counts, settings.clock, 5 * MINUTE_MS, clock)
    return state.live, state.ready, state.reasons


def test_the_job_is_ready_while_batches_come_within_the_horizon_and_live_through_an_outage() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    clock.now_s += 20
    assert _health(counts, clock) == (True, False, ["no batch finished since the start, 20 s ago"])
    counts.batch_done(batch(0, _ms(clock) + MINUTE_MS), {}, {}, 0, 0, {})
    assert _health(counts, clock) == (True, True, [])
    clock.now_s += 63
    assert _health(counts, clock) == (
        True, False, ["no batch finished for 63 s", "messages due from 1970-01-12T13:48:00.000Z on are not staged"]
    )  # fmt: skip
    clock.now_s += 15 * 60 + 1
    live, _, reasons = _health(counts, clock)
    assert (live, reasons[0]) == (False, "no task finished for 901 s")


def test_a_long_batch_is_live_while_tasks_end_and_no_longer() -> None:
    clock, done_tasks = Clock(), 0
    counts = JobCounts(clock)
    counts.watch_tasks(lambda: done_tasks)
    counts.batch_done(batch(0, _ms(clock) + MINUTE_MS), {}, {}, 0, 0, {})
    # A batch after a long outage: a task takes ten minutes, and a probe asks every minute.
    for minute in range(120):
        done_tasks = minute // 10
        clock.now_s += 60
        assert _health(counts, clock)[0], minute
    live_minutes = 0
    while _health(counts, clock)[0]:
        clock.now_s += 60
        live_minutes += 1
    # Five of `outage_limit`, ten for a task, less those in which the last one had run.
    assert 5 <= live_minutes <= 16


def test_a_step_that_is_done_is_progress_and_nobody_is_asked_for_tasks_while_batches_are_short() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    counts.watch_tasks(lambda: pytest.fail("Spark was asked"))
    clock.now_s += 60
    assert _health(counts, clock)[0]
    counts.watch_tasks(lambda: None)
    for _ in range(3):
        clock.now_s += 14 * 60
        assert _health(counts, clock)[0]
        counts.took("seal", 840)
    clock.now_s += 14 * 60
    assert _health(counts, clock)[0]
    clock.now_s += 16 * 60
    assert not _health(counts, clock)[0]


def test_a_job_that_replays_is_ready_once_it_hands_over_what_is_due_by_now() -> None:
    clock = Clock()
    counts = JobCounts(clock)
    # The first batch was planned before the job went down for two minutes, and so was the cutoff of the second one.
    for number, cutoff_ms in enumerate((_ms(clock) - 2 * MINUTE_MS, _ms(clock) - MINUTE_MS)):
        counts.batch_done(batch(number, cutoff_ms), {}, {}, 0, 0, {})
        assert _health(counts, clock)[:2] == (True, False)
        clock.now_s += 5
    counts.batch_done(batch(2, _ms(clock) + MINUTE_MS - 5_000), {}, {}, 0, 0, {})
    assert _health(counts, clock) == (True, True, [])


@pytest.mark.parametrize(
    ("horizon", "trigger", "idle_s"), [("1s", "0s", 0.25), ("1s", "500ms", 0.5), ("1s", "1s", 1), ("1m", "500ms", 5),
                                       ("1m", "500ms", 15), ("1h", "500ms", 15), ("1h", "1h", 3600)],
)  # fmt: skip
def test_an_idle_job_is_ready_all_the_time(horizon: str, trigger: str, idle_s: float) -> None:
    clock = Clock()
    counts = JobCounts(clock)
    horizon_ms = parse_duration_ms(horizon)
    before_ms = _ms(clock)
    for number in range(5):
        # It is begun with the cutoff that follows from the clock of the one before, takes a second, and is done.
        begun_s = clock.now_s
        for tenth in range(10):
            clock.now_s = begun_s + tenth / 10
            live, ready, _ = _health(counts, clock, f"clock.horizon={horizon}", f"clock.trigger={trigger}")
            assert live
            assert number == 0 or ready
        counts.batch_done(batch(number, before_ms + horizon_ms), {}, {}, 0, 0, {})
        before_ms = int(begun_s * 1000)
        clock.now_s = max(begun_s + idle_s, begun_s + 1)


def _ms(clock: Clock) -> int:
    return int(clock.now_s * 1000)
