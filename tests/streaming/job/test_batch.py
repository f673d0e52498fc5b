"""The checks of a batch on the state stage's output before it stages or seals anything (invariants 2 and 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import ClockAhead, CutoffMismatch
from conf.load import load_settings
from conf.setting_types import DAY, MINUTE
from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topics import ensure_topics
from state.buckets.operator import DUE, KEPT, SEALED, SHARD_OUTPUT_SCHEMA
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from state.kinds import MESSAGE, REPEATING
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import recover
from streaming.checkpoint.switch_over import writer_of_birth
from streaming.job.batch import BatchRunner
from streaming.job.lanes.lane_start import start_lanes
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.steps.report import BatchReport
from streaming.job.watches.clock_watch import now_ms
from streaming.monitor.job_metrics import JobCounts
from streaming.monitor.job_status import Merges
from tests.conftest import MakeSettings
from tests.messages import some_batch_settings
from tests.streaming.sealed import seal_messages

CUTOFF_MS = 50_000


@pytest.fixture
def settings(make_settings: MakeSettings, store: BucketTable, tmp_path: Path) -> Settings:
    """Settings of an application whose topics and table exist."""
    settings = make_settings(f"storage.path={tmp_path}")
    ensure_topics(settings, 1)
    return settings


@pytest.fixture
def runner(spark: SparkSession, settings: Settings, tmp_path: Path) -> Iterator[BatchRunner]:
    """A runner for the batches of a new checkpoint. Its first batch is planned."""
    with _running(spark, settings, tmp_path / "checkpoint") as batch_runner:
        yield batch_runner


@contextmanager
def _running(spark: SparkSession, settings: Settings, checkpoint: Path) -> Iterator[BatchRunner]:
    with closing(HeldLease(settings, "run")) as lease:
        state = recover(spark, settings, fresh=False, lease=lease)
        (checkpoint / "offsets").mkdir()
        _plan(checkpoint, 0)
        claims = start_lanes(settings, state, lease)
        with closing(BatchRunner(state, settings, lease, claims, JobCounts())) as batch_runner:
            # No batch waits for the next one.
            batch_runner.wake()
            yield batch_runner


def _plan(checkpoint: Path, batch_id: int) -> None:
    """Add a batch that reads nothing to the offset log."""
    metadata = f'{{"batchWatermarkMs":{CUTOFF_MS},"batchTimestampMs":{CUTOFF_MS}}}'
    (checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{metadata}\n-")


def _output(kind: str, cutoff_ms: int, first_due_ms: int) -> tuple[Any, ...]:
    return (kind, 1, cutoff_ms, 0, 0, "p", first_due_ms, first_due_ms + 10, 3, 300, 0, "{}", "{}", "", 0, 0, b"")


def test_a_batch_is_refused_if_its_state_stage_ran_at_another_cutoff_or_kept_due_messages(
    spark: SparkSession, runner: BatchRunner
) -> None:
    def refusal(*rows: tuple[Any, ...]) -> str:
        with pytest.raises(CutoffMismatch) as raised:
            runner.run(spark.createDataFrame(rows, from_arrow_schema(SHARD_OUTPUT_SCHEMA)), 0)
        return str(raised.value)

    fine = _output(KEPT, CUTOFF_MS, CUTOFF_MS)
    at_another_cutoff = _output(DUE, CUTOFF_MS + 1, 0)
    assert (
        refusal(fine, at_another_cutoff)
        == f"cutoff-mismatch: shard 1 ran with cutoff {CUTOFF_MS + 1}, but its batch has {CUTOFF_MS}"
    )
    for kind in (KEPT, SEALED):
        overdue = _output(kind, CUTOFF_MS, CUTOFF_MS - 1)
        assert refusal(fine, overdue) == f"cutoff-mismatch: shard 1 kept a message that was due at {CUTOFF_MS - 1}"
    # No refusal left anything behind: the batch still runs.
    runner.run(spark.createDataFrame([fine], from_arrow_schema(SHARD_OUTPUT_SCHEMA)), 0)


@pytest.mark.thorough
def test_a_replayed_batch_chooses_the_next_cutoff_by_the_present_clock(
    spark: SparkSession, runner: BatchRunner
) -> None:
    """The batch was planned decades ago, by its clock."""
    before_ms = now_ms()
    runner.run(spark.createDataFrame([_output(KEPT, CUTOFF_MS, CUTOFF_MS)], from_arrow_schema(SHARD_OUTPUT_SCHEMA)), 0)
    cutoff_ms = json.loads(spark.sparkContext.getLocalProperty("delayline.plan") or "")["next_cutoff_ms"]
    assert before_ms + MINUTE <= cutoff_ms <= now_ms() + MINUTE


def test_the_clock_of_a_host_that_is_far_ahead_chooses_no_cutoff(
    spark: SparkSession, runner: BatchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sparkContext.setLocalProperty("delayline.plan", "")
    monkeypatch.setattr("streaming.job.steps.planning.now_ms", lambda: now_ms() + DAY)
    with pytest.raises(ClockAhead, match="this host's clock shows"):
        runner.run(spark.createDataFrame([], from_arrow_schema(SHARD_OUTPUT_SCHEMA)), 0)
    assert spark.sparkContext.getLocalProperty("delayline.plan") == ""


class _Decided(Exception):
    """A batch has reached the decision of its requests."""


@pytest.mark.parametrize("kind", [pytest.param(MESSAGE, marks=pytest.mark.thorough), REPEATING])
def test_the_first_batch_of_a_checkpoint_knows_whether_messages_that_an_earlier_one_left_overdue_repeat(
    spark: SparkSession,
    settings: Settings,
    store: BucketTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: int,
) -> None:
    checkpoint = tmp_path / "checkpoint"
    origin = CheckpointOrigin("c", 1, settings.bucket.shards, first_bucket=1, cutoff_ms=CUTOFF_MS)
    Checkpoint(spark, str(checkpoint)).initialize(origin)
    store.fence(writer_of_birth(origin.checkpoint))
    overdue = {"deliver_at_ms": CUTOFF_MS - 1, "kind": kind}
    seal_messages(store, origin.overdue_bucket, [overdue], some_batch_settings())
    known: list[bool] = []

    def decide(*arguments: Any) -> Decision:
        known.append(arguments[-1])
        raise _Decided

    monkeypatch.setattr(RequestDesk, "decide", decide)
    with _running(spark, settings, checkpoint) as batch_runner:
        with pytest.raises(_Decided):
            batch_runner.run(spark.createDataFrame([], from_arrow_schema(SHARD_OUTPUT_SCHEMA)), 0)
        assert known == [kind == REPEATING]
        batch_runner._window.advance(CUTOFF_MS)
        assert not batch_runner._window.may_repeat


@pytest.mark.parametrize(
    ("override", "counted"),
    [
        ("monitor.job=", False),
        ("monitor.job=127.0.0.1:9464", True),
        ("monitor.otlp=http://collector:4318/v1/metrics", True),
    ],
)
def test_metrics_of_the_table_are_collected_only_if_they_are_served_or_exported(override: str, counted: bool) -> None:
    assert ("delayline_sealed_buckets" in _metrics_of_a_batch(override)) == counted


def test_a_batch_counts_the_lanes_that_the_job_has_taken_over() -> None:
    taken_over = _metrics_of_a_batch("monitor.job=")["delayline_lane_taken_over"]
    assert {sample.labels["lane"]: sample.value for sample in taken_over.samples} == {"0": 1, "1": 0}


def _metrics_of_a_batch(override: str) -> dict[str, Metric]:
    settings, counts = load_settings(None, [override], environ={}), JobCounts()
    table: Any = SimpleNamespace(buckets={}, merges=Merges(), failures={}, size=lambda: None)
    report = BatchReport(settings, counts, table, table, table)
    span: Any = SimpleNamespace(read_by_topic={})
    report.batch_done(PlannedBatch(0, 0, 0, {}), span, [], [], Decision(), {0: True, 1: False}, 0.5, False)
    return {metric.name: metric for metric in counts.collect()}
