"""Starts that are fresh, that another process overtakes, or that find topics in new roles."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from conf.errors import ApplicationHeld, CheckpointMismatch, UsageError
from conf.setting_types import DAY, MINUTE
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from state.checkpoint.batch_settings import SettingsHistory
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from streaming.checkpoint import beginning, recovery
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.checkpoint.recovery import Recovered, recover
from streaming.checkpoint.switch_over import writer_of_input, writer_of_state
from streaming.storage import guarded_log
from tests.messages import some_batch_settings
from tests.streaming.checkpoint_logs import plan
from tests.streaming.crashed_holder import lease_after_a_crash
from tests.streaming.sealed import sealed_rows


def files_in(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file of a checkpoint."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_a_start_that_was_paused_until_another_process_took_the_lease_writes_nothing(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now_ms = tmp_path / "checkpoint", time.time_ns() // 1_000_000
    changed = settings.model_copy(update={"clock": settings.clock.model_copy(update={"horizon": 2 * MINUTE})})

    def recover_late() -> None:
        def refuse() -> None:
            raise ApplicationHeld("another process holds the lease")

        before = files_in(folder)
        with monkeypatch.context() as patch:
            # The last answer of the broker still counts.
            patch.setattr(lease, "check_now", refuse)
            with pytest.raises(ApplicationHeld):
                recover(spark, changed, False, lease)
        assert files_in(folder) == before

    recover_late()
    recover(spark, settings, False, lease)
    plan(folder, 0, now_ms)
    recover_late()
    recover(spark, settings, False, lease)
    plan(folder, 1, now_ms + 366 * DAY)
    recover_late()
    assert recover(spark, changed, False, lease).checkpoint.last_planned() == 0


@pytest.mark.thorough
def test_a_start_that_was_paused_does_not_replace_the_checkpoint_that_was_begun_meanwhile(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Recovered] = []

    def pause() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lease, "check_now", lambda: None)
            begun.append(recover(spark, settings, False, lease))

    # It is paused after the first answer of the broker.
    monkeypatch.setattr(lease, "check_now", pause)
    with pytest.raises(ApplicationHeld, match=r"has begun the checkpoint .*/checkpoint at the same time"):
        recover(spark, settings, False, lease)
    (other,) = begun
    assert Checkpoint(spark, other.checkpoint.path).origin == other.checkpoint.origin


_OUTPUT_BEFORE = r"topics\.results is orders, which was an output topic"
_RESULTS_BEFORE = r"topics\.input names delayline-results, which was topics\.results until now"


@pytest.mark.parametrize(
    ("topics", "planned", "refusal"),
    [
        ({"results": "orders"}, 4, _OUTPUT_BEFORE),
        ({"results": "a-new-topic"}, 4, ""),
        ({"results": "delayline-results"}, 4, ""),
        ({"results": "orders"}, None, ""),
        ({"results": "a-new-topic", "input": ("in", "delayline-results")}, 4, _RESULTS_BEFORE),
        ({"results": "a-new-topic", "input": ("in", "delayline-results")}, None, ""),
    ],
)
def test_a_topic_is_refused_in_a_role_in_which_earlier_messages_or_answers_would_be_misread(
    monkeypatch: pytest.MonkeyPatch, topics: dict[str, Any], planned: int | None, refusal: str
) -> None:
    results = topics["results"]
    counts = {"delayline-out": 4, "orders": 3, "delayline-results": 2}
    monkeypatch.setattr(recovery, "offered_topics", lambda _: counts | {results: 2})
    monkeypatch.setattr(recovery, "dead_letter_bytes", lambda _: 1_000_000)
    before = Settings()
    written: list[SettingsHistory] = []
    earlier = some_batch_settings(
        allowed_outputs=("*",), partitions=counts, shard_keys=tuple(range(before.bucket.shards))
    )
    checkpoint: Any = SimpleNamespace(
        path="checkpoint",
        origin=CheckpointOrigin("c", 1, before.bucket.shards),
        settings_history=lambda: SettingsHistory(((0, earlier),)),
        write_settings_history=written.append,
        first_offsets=dict,
        read_offsets=dict,
        planned=lambda number: PlannedBatch(number, 0, 0, {}),
    )
    settings = before.model_copy(update={"topics": before.topics.model_copy(update=topics)})
    if refusal:
        with pytest.raises(CheckpointMismatch, match=refusal):
            recovery._amended_history(settings, cast(Checkpoint, checkpoint), planned, {"in": "id"})
        assert written == []
    else:
        history = recovery._amended_history(settings, cast(Checkpoint, checkpoint), planned, {"in": "id"})
        assert (written, history.newest.results) == ([history], results)


@pytest.mark.thorough
def test_after_a_fresh_start_nothing_of_the_checkpoint_before_is_sealed(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    recovered = recover(spark, settings, False, lease)
    earlier = recovered.checkpoint.origin
    shutil.rmtree(tmp_path / "checkpoint")
    fresh = recover(spark, settings, True, lease).checkpoint.origin
    writers = [earlier.checkpoint, writer_of_state(earlier.checkpoint), writer_of_input(earlier.checkpoint)]
    for writer_id in writers:
        with pytest.raises(ApplicationHeld):
            recovered.store.append(sealed_rows(spark, 1, [{"deliver_at_ms": 99}], some_batch_settings()), writer_id, 1)
    assert recovered.store.metadata() == []
    assert not recovered.store.is_fenced(fresh.checkpoint)


@pytest.mark.thorough
def test_a_fresh_start_after_a_crash_keeps_the_first_entry_that_it_writes(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was cut off may replace that one, also after this start is cut off."""
    monkeypatch.setattr(guarded_log, "is_on_s3", lambda _: True)
    store = recover(spark, settings, False, lease).store
    first = f"{store.version() + 1:020d}.json"
    shutil.rmtree(tmp_path / "checkpoint")
    lease.close()

    def cut_off(*_: Any) -> None:
        raise ApplicationHeld("the process ends here")

    monkeypatch.setattr(beginning, "announce_origin", cut_off)
    with closing(lease_after_a_crash(settings, "run")) as after, pytest.raises(ApplicationHeld):
        recover(spark, settings, True, after)
    kept = (tmp_path / "log-copies" / first).read_text()
    assert kept == (tmp_path / "buckets" / "_delta_log" / first).read_text()


def test_a_fresh_start_that_is_refused_does_no_harm(
    spark: SparkSession, settings: Settings, lease: HeldLease, tmp_path: Path
) -> None:
    recovered = recover(spark, settings, False, lease)
    plan(tmp_path / "checkpoint", 0)
    earlier = recovered.checkpoint.origin.checkpoint
    recovered.store.append(sealed_rows(spark, 0, [{"deliver_at_ms": 99}], some_batch_settings()), earlier, 0)
    with pytest.raises(UsageError, match=r"there is a checkpoint at \S+, from which `delayline run` continues"):
        recover(spark, settings, True, lease)
    kept = (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointMismatch, match="holds sealed messages of an earlier one"):
        recover(spark, settings, True, lease)
    # A rebuild can seal the rest, and the checkpoint can go on if it is put back.
    assert not any(map(recovered.store.is_fenced, (earlier, writer_of_input(earlier))))
    kept.rename(tmp_path / "checkpoint")
    assert recover(spark, settings, False, lease).catalog.messages == 1
