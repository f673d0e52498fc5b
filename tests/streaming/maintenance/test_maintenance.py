"""Days of maintenance in a minute: the test sets the clocks of Delta and of maintenance. The table must not grow."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import streaming.maintenance.merge
from sinks.buckets.bucket_table import ALL_BUCKETS
from state.buckets.cancelled import Forgettable, cancelled_rows
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows, MergeName, abandoned
from state.buckets.segments import cut
from state.names import NAMED_SCHEMA, name_rows
from streaming.maintenance.maintenance import Maintenance, TableContents
from streaming.maintenance.merge import Merge, merge_slice
from streaming.maintenance.merge_plan import MergeRules
from tests.messages import cancelled, messages
from tests.streaming.maintenance.clocked_table import (
    BATCH_SETTINGS,
    FAN_IN,
    HOUR_MS,
    Table,
    add_bucket,
    maintenance_of,
    run_until_idle,
    seal,
)
from tests.streaming.sealed import cancelled_in

_STEP_MS = 6 * HOUR_MS


@pytest.mark.thorough
def test_the_log_keeps_an_hour_of_commits_and_the_entries_since_its_last_checkpoint(table: Table) -> None:
    # Delta writes a checkpoint of the log with each fiftieth commit, and all before it can go.
    for number in range(55):
        seal(table, number, [table.now_ms + 48 * HOUR_MS])
    table.store.clean_log()
    assert table.log_versions() == list(range(56))
    table.advance(2 * HOUR_MS)
    table.store.clean_log()
    assert table.log_versions() == list(range(50, 56))
    assert len(table.store.metadata()) == 55


@pytest.mark.thorough
def test_files_that_merges_replaced_are_deleted_even_if_nothing_is_due_for_days(table: Table) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    for number in range(FAN_IN):
        add_bucket(table, catalog, maintenance, number, [table.now_ms + 48 * HOUR_MS])
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    assert len(catalog.buckets) == 1
    assert len(table.unreferenced()) >= FAN_IN
    table.advance(2 * HOUR_MS)
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert table.unreferenced() == {_name_of_marker(table)}
    assert len(table.store.metadata()) == sum(len(segments) for segments in catalog.buckets.values())


@pytest.mark.thorough
def test_a_merge_leaves_out_all_messages_that_are_cancelled_though_they_have_one_id(table: Table) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    due_ms = table.now_ms + 48 * HOUR_MS
    for number in range(FAN_IN):
        # The input topic was created again before each bucket. The first message of each bucket is cancelled.
        add_bucket(table, catalog, maintenance, number, [due_ms, due_ms + 1])
        gone = cancelled_rows(cancelled([("delayline-in", 0, 0, due_ms, due_ms)]), number)
        table.store.append(table.store.spark.createDataFrame(gone), "cancels", number)
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert [segment.count for segments in catalog.buckets.values() for segment in segments] == [FAN_IN]


def _name_of_marker(table: Table) -> str:
    """Return the name of the only marker's file, which `BucketTable.files` leaves out."""
    (marker,) = (table.path).glob("part=live-*/*.parquet")
    return marker.name


@pytest.mark.thorough
def test_files_of_the_last_messages_are_deleted_even_if_no_more_messages_arrive(table: Table) -> None:
    maintenance = maintenance_of(table, SegmentCatalog())
    maintenance.sealed(seal(table, 0, [table.now_ms]))
    table.advance(_STEP_MS)
    # The first vacuum is for files that an earlier run left. It does not find any.
    run_until_idle(maintenance, 0, table.now_ms)
    assert (table.store.metadata(), table.files() > 0) == ([], True)
    for _ in range(2):
        table.advance(HOUR_MS)
        run_until_idle(maintenance, 0, table.now_ms)
    maintenance.close()
    assert table.files() == 0


@pytest.mark.thorough
def test_the_marker_of_a_merged_bucket_goes_with_its_last_part(table: Table) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    for number in range(FAN_IN):
        add_bucket(table, catalog, maintenance, number, [table.now_ms + HOUR_MS])
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    table.advance(2 * HOUR_MS)
    catalog.forget_before(table.now_ms)
    run_until_idle(maintenance, FAN_IN - 1, table.now_ms)
    maintenance.close()
    assert table.store.delta_partitions() == set()


def test_what_an_earlier_process_merged_and_did_not_finish_is_deleted(table: Table) -> None:
    sealed = [seal(table, number, [table.now_ms + HOUR_MS]) for number in (1, 2)]
    name = MergeName(1, 2, 1)
    merge = Merge(name, {1: sealed[0], 2: sealed[1]})
    within = merge.next_slice(0)
    assert within is not None
    merge_slice(table.store, merge, within, BATCH_SETTINGS, ALL_BUCKETS)
    left = abandoned(table.store.delta_partitions())
    assert left
    maintenance = Maintenance(
        table.store,
        SegmentCatalog(),
        TableContents(abandoned=left),
        MergeRules(BATCH_SETTINGS, 2, FAN_IN),
        now=lambda: table.now_ms / 1000,
    )
    run_until_idle(maintenance, 2, table.now_ms)
    maintenance.close()
    assert abandoned(table.store.delta_partitions()) == set()
    assert len(table.store.metadata()) == 2


def test_names_are_joined_and_what_nobody_looks_for_any_more_is_forgotten(table: Table) -> None:
    delivered_ms = table.now_ms
    long_ago, waits = delivered_ms - 3 * HOUR_MS, delivered_ms + HOUR_MS
    maintenance = maintenance_of(table, SegmentCatalog())
    for number in range(FAN_IN):
        given = [(b"shared", waits), (b"own %d" % number, long_ago)]
        rows = [(name, "in", 0, 10 * number + at, due, due, False) for at, (name, due) in enumerate(given)]
        columns = zip(zip(*rows, strict=True), NAMED_SCHEMA, strict=True)
        names = pa.table([pa.array(column, field.type) for column, field in columns], schema=NAMED_SCHEMA)
        named = name_rows(names, number)
        table.store.append(table.store.spark.createDataFrame(named), "checkpoint", number)
        maintenance.stored(IdRows.NAMED, number, 2)
    # The last one is not committed: a replay of its batch must find the same rows as now.
    run_until_idle(maintenance, FAN_IN - 2, delivered_ms)
    assert table.store.id_partitions(IdRows.NAMED).keys() == set(range(FAN_IN))
    run_until_idle(maintenance, FAN_IN - 1, delivered_ms)
    maintenance.close()
    assert table.store.id_partitions(IdRows.NAMED).keys() == {FAN_IN - 1}
    names_left = table.store.ids(IdRows.NAMED)
    assert names_left is not None
    (left,) = names_left.select("name", "offset").collect()
    assert (bytes(left["name"]), left["offset"]) == (b"shared", 10 * (FAN_IN - 1))


@pytest.mark.thorough
def test_cancelled_ids_are_forgotten_within_a_day_though_there_is_nothing_to_join_them_with(table: Table) -> None:
    long_ago, waits = table.now_ms - 3 * HOUR_MS, table.now_ms + 1_000 * HOUR_MS
    old_below = {("in", 0): 1_000}
    maintenance = maintenance_of(
        table, SegmentCatalog(), forgettable=lambda at_ms: Forgettable(at_ms, ALL_BUCKETS, old_below)
    )
    for number, dues in enumerate(([long_ago, waits], [long_ago], [waits])):
        rows = cancelled_rows(cancelled(("in", 0, 10 * number + at, due, due) for at, due in enumerate(dues)), number)
        table.store.append(table.store.spark.createDataFrame(rows), "checkpoint", number)
        maintenance.stored(IdRows.CANCELLED, number, len(dues))
    left = []
    for hours in (0, 1, 8, 8, 8):
        table.advance(hours * HOUR_MS)
        # The last one is not committed.
        run_until_idle(maintenance, 1, table.now_ms)
        left.append(cancelled_in(table.store)["in", 0])
    maintenance.close()
    assert left == [[0, 1, 10, 20], [1, 10, 20], [1, 10, 20], [1, 20], [1, 20]]
    assert table.store.id_partitions(IdRows.CANCELLED).keys() == {0, 2}


class Recorded:
    """A store that records its calls and their minute."""

    path = "storage/buckets"

    def __init__(self) -> None:
        self.spark = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
        self.minute = 0
        self.calls: list[tuple[str, int]] = []
        self.deleted: set[str] = set()

    def delete(self, partitions: set[str]) -> None:
        self.calls.append(("delete", self.minute))
        self.deleted |= partitions

    def vacuum(self) -> None:
        self.calls.append(("vacuum", self.minute))

    def clean_log(self) -> None:
        self.calls.append(("clean log", self.minute))


def test_the_marker_of_a_merged_bucket_for_which_nothing_was_left_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = Recorded()
    finished: list[MergeName] = []
    monkeypatch.setattr(streaming.maintenance.merge, "commit_merge", lambda _, name, *__: finished.append(name))
    catalog = SegmentCatalog()
    rules = MergeRules(BATCH_SETTINGS, 1, FAN_IN)
    maintenance = Maintenance(store, catalog, TableContents(), rules, now=lambda: store.minute * 60)
    for number in range(FAN_IN):
        sealed = [segment for segment, _ in cut(messages([{"deliver_at_ms": 10}]), number, 0, BATCH_SETTINGS)]
        catalog.add(sealed)
        maintenance.sealed(sealed)
    # All of it is delivered before the merge begins with its first slice.
    run_until_idle(maintenance, FAN_IN - 1, 20)
    maintenance.close()
    assert len(catalog) == 0
    assert finished == [MergeName(0, FAN_IN - 1, 1)]
    assert store.deleted == {finished[0].live}


def test_a_vacuum_waits_until_it_finds_files_and_an_idle_job_runs_none() -> None:
    store: Any = Recorded()
    # The last message of one part is due after three hours, and of two parts in the fifth hour.
    parts = {f"{minute:012d}": minute * 60_000 - 1 for minute in (180, 310, 330)}
    rules = MergeRules(BATCH_SETTINGS, 1, FAN_IN)
    maintenance = Maintenance(store, SegmentCatalog(), TableContents(parts), rules, now=lambda: store.minute * 60)
    for store.minute in range(24 * 60):
        maintenance.before_batch(0, store.minute * 60_000)
        maintenance.wait(10)
    maintenance.close()
    vacuums = [minute for call, minute in store.calls if call == "vacuum"]
    deletes = [minute for call, minute in store.calls if call == "delete"]
    assert deletes == [180, 310, 330]
    cleaned = [minute for call, minute in store.calls if call == "clean log"]
    # A minute later if another step has begun.
    assert {after - before for before, after in pairwise([0, *cleaned])} <= {10, 11}
    assert cleaned[-1] > 23 * 60
    # Two for files that may be there at the start; one for the first part; two, an hour apart, for the others. That a
    # step has ended is seen before the next batch, here a minute later.
    assert vacuums == [5, 66, 242, 372, 433]


@pytest.mark.parametrize(
    "steps", [pytest.param(5, marks=[pytest.mark.thorough]), pytest.param(14, marks=[pytest.mark.soak])]
)
def test_days_of_sealing_and_delivering_leave_only_the_waiting_messages_in_the_table(table: Table, steps: int) -> None:
    catalog = SegmentCatalog()
    maintenance = maintenance_of(table, catalog)
    seen: list[int] = []
    number = 0
    for _ in range(steps):
        # Each bucket spans the next twelve hours.
        dues = [table.now_ms + HOUR_MS // 2 + at * HOUR_MS for at in range(12)]
        add_bucket(table, catalog, maintenance, number, dues)
        table.advance(_STEP_MS)
        catalog.forget_before(table.now_ms)
        run_until_idle(maintenance, number, table.now_ms)
        assert len(catalog.buckets) <= 3
        seen.append(table.files())
        number += 1
    # Once the first buckets are delivered, later steps have no more files than earlier ones.
    first, second = (max(half) for half in (seen[steps // 3 : steps * 2 // 3], seen[steps * 2 // 3 :]))
    assert second <= first * 1.2, seen
    for _ in range(3):
        table.advance(_STEP_MS)
        catalog.forget_before(table.now_ms)
        run_until_idle(maintenance, number, table.now_ms)
    maintenance.close()
    assert len(catalog) == 0
    assert table.store.metadata() == []
    assert table.size() < 20_000, f"files are left of {steps} buckets with 12 kB each"
