"""Steps of maintenance that fail: the job goes on, and each is tried again after a pause that grows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import streaming.maintenance.merging
from conf.errors import ApplicationHeld, BrokerUnreachable, CutoffMismatch, StorageFailed
from conf.failpoints import VARIABLE
from state.buckets.catalog import SegmentCatalog
from state.buckets.merge import most_behind
from state.buckets.parts import IdRows, abandoned, chunks_of, sealed_part
from state.buckets.segments import Segment
from state.buckets.table_rows import described_segment
from state.message import decode_chunk
from state.names import NAMED_SCHEMA, name_rows
from streaming.maintenance.failures import STEPS, Failures
from streaming.maintenance.maintenance import Maintenance
from streaming.monitor.table_state import StepFailures
from tests.streaming.maintenance.clocked_table import (
    FAN_IN,
    HOUR_MS,
    Table,
    add_bucket,
    maintenance_of,
    run_until_idle,
    seal,
)
from tests.streaming.sealed import cut_short
from tests.thorough import some_thorough

_MINUTE_MS = 60_000
FULL = StorageFailed("no space left")


def _parts(table: Table) -> set[str]:
    return {described_segment(row.asDict()).part for row in table.store.metadata()}


def _waiting(table: Table) -> list[int]:
    """Return the offsets of all messages that a load finds."""
    chunks = table.store.chunks(0, 2**62, _parts(table)).collect()
    return sorted(each for row in chunks for each in decode_chunk(bytes(row["chunk"])).column("offset").to_pylist())


def _failed(maintenance: Maintenance) -> dict[str, StepFailures]:
    return {step: failures for step, failures in maintenance.failures.items() if failures != StepFailures(0, 0)}


def test_a_damaged_file_sets_the_buckets_of_its_merge_aside_until_it_is_put_back(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    next_year_ms = table.now_ms + 365 * 24 * HOUR_MS

    def sealed(numbers: range) -> None:
        for number in numbers:
            add_bucket(table, catalog, maintenance, number, [next_year_ms + number])
        run_until_idle(maintenance, numbers[-1], table.now_ms)

    sealed(range(FAN_IN - 1))
    (damaged,) = table.path.glob(f"part={chunks_of(sealed_part(1))}/*.parquet")
    whole = cut_short(damaged)
    # Whatever another test has set.
    caplog.set_level(logging.WARNING)
    sealed(range(FAN_IN - 1, FAN_IN))
    (warning,) = caplog.messages
    assert warning.startswith("the merge of buckets 0, 1, 2 failed; trying again in 1 min. The job continues: ")
    assert f"{damaged} is missing or damaged" in warning
    assert "It holds 1 messages of bucket 1" in warning
    assert _failed(maintenance) == {"merge": StepFailures(1, FAN_IN)}
    # Later buckets are merged. After the pause the file is found damaged once more.
    sealed(range(FAN_IN, 2 * FAN_IN))
    assert sorted(catalog.buckets) == [*range(FAN_IN), 2 * FAN_IN - 1]
    table.advance(_MINUTE_MS)
    run_until_idle(maintenance, 2 * FAN_IN - 1, table.now_ms)
    assert "trying again in 2 min" in caplog.messages[-1]
    damaged.write_bytes(whole)
    run_until_idle(maintenance, 2 * FAN_IN - 1, table.now_ms)
    assert len(catalog.buckets) == FAN_IN + 1
    table.advance(2 * _MINUTE_MS)
    run_until_idle(maintenance, 2 * FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert sorted(catalog.buckets) == [FAN_IN - 1, 2 * FAN_IN - 1]
    assert _failed(maintenance) == {"merge": StepFailures(2, 0)}
    assert _waiting(table) == [0] * 2 * FAN_IN
    assert abandoned(table.store.delta_partitions()) == set()


class Case(NamedTuple):
    """A kind of step: how to make it due, and how to see that it was done."""

    step: str
    prepare: Callable[[Table, SegmentCatalog, Maintenance], None]
    refusals: list[Exception | None]
    is_done: Callable[[Table, SegmentCatalog], bool]


def _buckets_to_merge(table: Table, catalog: SegmentCatalog, maintenance: Maintenance) -> None:
    for number in range(FAN_IN):
        add_bucket(table, catalog, maintenance, number, [table.now_ms + 48 * HOUR_MS])


def _staged(table: Table, catalog: SegmentCatalog, maintenance: Maintenance) -> None:
    maintenance.sealed(seal(table, 0, [table.now_ms]))
    table.advance(_MINUTE_MS)


def _names_to_join(table: Table, catalog: SegmentCatalog, maintenance: Maintenance) -> None:
    for number in range(FAN_IN):
        row = {"name": b"name", "topic": "in", "partition": 0, "offset": number, "from_ms": 2**50, "until_ms": 2**50}
        terms = (*row.values(), False)
        names = pa.Table.from_pylist([dict(zip(NAMED_SCHEMA.names, terms, strict=True))], schema=NAMED_SCHEMA)
        table.store.append(table.store.spark.createDataFrame(name_rows(names, number)), "checkpoint", number)
        maintenance.stored(IdRows.NAMED, number, 1)


def _old_file(table: Table, catalog: SegmentCatalog, maintenance: Maintenance) -> None:
    partition = next(iter(table.path.glob("part=*")), table.path / "part=chunks-none")
    partition.mkdir(exist_ok=True)
    (partition / "left.parquet").touch()
    table.advance(2 * HOUR_MS)


def _ten_minutes(table: Table, catalog: SegmentCatalog, maintenance: Maintenance) -> None:
    # A vacuum comes first.
    table.advance(10 * _MINUTE_MS)


CASES = [
    Case("merge", _buckets_to_merge, [FULL], lambda _, catalog: len(catalog.buckets) == 1),
    Case("merge", _buckets_to_merge, [None, FULL], lambda _, catalog: len(catalog.buckets) == 1),
    Case("delete", _staged, [FULL], lambda table, _: not table.store.delta_partitions()),
    Case("join", _names_to_join, [FULL], lambda table, _: len(table.store.id_partitions(IdRows.NAMED)) == 1),
    Case("vacuum", _old_file, [BrokerUnreachable("away")], lambda table, _: table.files() == 0),
    Case("clean-log", _ten_minutes, [None, FULL], lambda *_: True),
]


def _rows() -> list[Any]:
    """Return the cases. All but one are thorough, since the same code sets them aside."""
    names = [f"{case.step}-{len(case.refusals)}" for case in CASES]
    thorough = [[] if name == "delete-1" else [pytest.mark.thorough] for name in names]
    return [pytest.param(case, id=name, marks=marks) for case, name, marks in zip(CASES, names, thorough, strict=True)]


@pytest.mark.parametrize("case", _rows())
def test_a_step_that_fails_is_tried_again_after_a_pause_and_ends_no_batch(table: Table, case: Case) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    case.prepare(table, catalog, maintenance)
    table.refusals = list(case.refusals)
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    assert table.refusals == []
    before = _failed(maintenance)
    assert before.keys() == {case.step}
    assert (before[case.step].failed, before[case.step].set_aside > 0) == (1, True)
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    assert _failed(maintenance) == before, "not before the pause is over"
    table.advance(_MINUTE_MS)
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert _failed(maintenance) == {case.step: StepFailures(1, 0)}
    assert case.is_done(table, catalog)


@pytest.mark.parametrize("point", some_thorough(["slice-merged", "merged"], always=["merged"]))
def test_a_merge_that_fails_after_a_commit_doubles_no_message(
    table: Table, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    dues = [table.now_ms + at * HOUR_MS for at in (1, 2)]
    for number in range(FAN_IN):
        add_bucket(table, catalog, maintenance, number, dues)
    every = _waiting(table)
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    run_until_idle(maintenance, FAN_IN - 1, 0)
    monkeypatch.delenv(VARIABLE)
    assert (len(catalog.buckets), _waiting(table)) == (FAN_IN, every)
    # A load finds all of it, whether the driver knows of the merged bucket or not.
    parts = catalog.parts_of(catalog.overlapping(0, 2**62))
    assert table.store.chunks(0, 2**62, parts).count() == len(table.store.metadata())
    table.advance(_MINUTE_MS)
    run_until_idle(maintenance, FAN_IN - 1, 0)
    assert (len(catalog.buckets), _waiting(table)) == (1, every)
    # The next deletion removes the files that the first try has left.
    table.advance(_MINUTE_MS)
    run_until_idle(maintenance, FAN_IN - 1, 0)
    maintenance.close()
    assert abandoned(table.store.delta_partitions()) == set()
    assert _parts(table) == catalog.parts_of(catalog.overlapping(0, 2**62))


def test_a_batch_does_not_wait_for_merges_that_are_set_aside(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Segment]:
        raise FULL

    monkeypatch.setattr(streaming.maintenance.merging, "merge_slice", broken)
    catalog, due_ms = SegmentCatalog(), table.now_ms + HOUR_MS
    maintenance = maintenance_of(table, catalog)
    many = 4 * most_behind(16, FAN_IN)
    segments = [Segment(number, 0, 0, str(number), due_ms, due_ms, 1, 1) for number in range(many)]
    catalog.add(segments)
    maintenance.sealed(segments)
    maintenance.before_batch(many - 1, 0)
    # Longer than a test may take.
    maintenance.catch_up(many - 1, 0, 86_400)
    assert maintenance.catch_up(many - 1, 0, 86_400) == 0.0
    assert len(catalog.buckets) == many
    assert maintenance.failures["merge"].set_aside >= many // 2
    maintenance.close()


def test_a_process_that_may_not_write_any_more_ends(table: Table) -> None:
    maintenance = maintenance_of(table, SegmentCatalog())
    _staged(table, SegmentCatalog(), maintenance)
    table.refusals = [ApplicationHeld("another process has taken over")]
    with pytest.raises(ApplicationHeld):
        run_until_idle(maintenance, 0, table.now_ms)
    maintenance.close()


class Clock:
    """A clock that a test sets."""

    now_s = 0.0


def test_the_pause_of_an_item_doubles_with_each_failure_up_to_six_hours() -> None:
    clock = Clock()
    failures = Failures("storage", lambda: clock.now_s)
    pauses = []
    for _ in range(12):
        failures.add("merge", [1, 2], "the merge", FULL)
        begun_s = clock.now_s
        while failures.waiting("merge"):
            clock.now_s += 30
        pauses.append((clock.now_s - begun_s) / 60)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360, 360]
    # One bucket is merged with others that never failed, and its pause goes on where it was.
    failures.add("merge", [2, 3], "the merge", FULL)
    clock.now_s += 3_600
    assert failures.waiting("merge") == {2, 3}
    failures.remove("merge", [2, 3])
    failures.add("merge", [3], "the merge", FULL)
    clock.now_s += 61
    assert failures.waiting("merge") == set()
    assert failures.by_step == {
        step: StepFailures(14 if step == "merge" else 0, 2 if step == "merge" else 0) for step in STEPS
    }


def test_what_is_gone_and_what_no_step_tries_again_is_not_set_aside_for_ever() -> None:
    clock = Clock()
    failures = Failures("storage", lambda: clock.now_s)
    failures.add("merge", [1, 2, 3, 4], "the merge", FULL)
    failures.keep("merge", present=[1, 2, 3], tried=[])
    assert failures.waiting("merge") == {1, 2, 3}
    clock.now_s += 60
    failures.keep("merge", present=[1, 2, 3], tried=[2, 3])
    assert failures.by_step["merge"] == StepFailures(1, 2)


@pytest.mark.parametrize("problem", [ApplicationHeld("taken"), CutoffMismatch("a defect")])
def test_an_error_by_which_the_job_must_end_is_not_set_aside(problem: Exception) -> None:
    with pytest.raises(type(problem)):
        Failures("storage", lambda: 0.0).add("delete", ["delete"], "a deletion", problem)


def test_a_failure_of_spark_is_logged_in_one_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    text = "An error occurred.\n: org.apache.spark.SparkException: Job aborted.\n\tat org.apache.Some.java\n" + (
        "Caused by: java.io.IOException: Input/output error\n"
    )
    Failures(str(tmp_path), lambda: 0.0).add("vacuum", ["vacuum"], "a vacuum", RuntimeError(text))
    (line,) = caplog.messages
    assert line.startswith("a vacuum failed; trying again in 1 min. The job continues: storage-failed: ")
    assert "\n" not in line
