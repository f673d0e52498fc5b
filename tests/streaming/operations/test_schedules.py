"""Messages that repeat, across lost checkpoints: one occurrence of each waits, and it is the right one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, InTable, Progress
from state.checkpoint.staged import StagedMessages
from state.message_ids import ID
from state.order import OrderKey
from state.repeats.schedule import ALL, MISSED, NONE, ONE
from state.repeats.waiting import waiting_in
from state.shards import by_shard
from streaming.checkpoint.switch_over import writer_of_birth, writer_of_following, writer_of_repair
from streaming.operations import schedules
from streaming.operations.schedules import Superseded, lacks_following
from tests.streaming.operations.schedule_job import (
    FIRST,
    SECOND,
    SETTINGS,
    SHARDS,
    START_MS,
    Job,
    check,
    published,
    record,
)
from tests.thorough import examples

STEPS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 80), st.none() | st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=6,
)


@pytest.mark.takes(30)
@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from([1, 200, 10**6]), st.none() | st.integers(1, 20))
def test_one_occurrence_waits_after_each_rebuild(
    steps: list[tuple[int, int, int | None, bool]], group_bytes: int, most: int | None
) -> None:
    """Wherever the last batch was cut off, and however many occurrences a batch may stage."""
    messages = published(ONE, ALL, NONE, ALL, NONE, most=most)
    job = Job(replace(SETTINGS, group_bytes=group_bytes), table=[(0, messages)])
    clock_ms = START_MS
    for passed_s, ahead_s, cut, other in steps:
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, None, other)
        check(job, messages, most=most)
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, cut, other)
        if cut is not None:
            job.rebuild()
        check(job, messages, most=most)


@pytest.mark.takes(30)
@settings(max_examples=examples(25), deadline=None)
@given(STEPS, STEPS, st.sampled_from([1, 200, 10**6]), st.none() | st.integers(1, 20))
def test_schedules_go_on_after_a_restore_of_an_older_table(
    before: list[tuple[int, int, int | None, bool]],
    after: list[tuple[int, int, int | None, bool]],
    group_bytes: int,
    most: int | None,
) -> None:
    """Also if the last batches have each staged as many occurrences as a batch may."""
    messages = published(ONE, ALL, NONE, ALL, NONE, most=most)
    job = Job(replace(SETTINGS, group_bytes=group_bytes), table=[(0, messages)])
    clock_ms = START_MS
    for passed_s, ahead_s, _, other in before:
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, None, other)
    copied, in_table, born = [*job.table], job.in_table, job.born
    # The copy does not have these. Their records are read again.
    later_ms = clock_ms + after[0][0] * SECOND
    later = [record(FIRST + number, missed, most=most, timestamp_ms=later_ms) for number, missed in enumerate(MISSED)]
    begun_ms = dict.fromkeys(range(FIRST), START_MS) | dict.fromkeys(range(FIRST, FIRST + len(MISSED)), later_ms)
    for number, (passed_s, ahead_s, _, other) in enumerate(after):
        clock_ms += passed_s * SECOND
        job.run(clock_ms, ahead_s * SECOND, None, other, later if number == 0 else [])
    # The last one is cut off.
    job.run(clock_ms, after[0][1] * SECOND, after[0][2])
    job.table, job.in_table = copied, in_table
    job.rebuild()
    waiting = job.waiting()
    waits = dict(zip(waiting.column("offset").to_pylist(), waiting_in(waiting), strict=True))
    assert len(waits) == waiting.num_rows, "one of each"
    for offset, missed in enumerate([ONE, ALL, NONE, ALL, NONE, *MISSED]):
        came = job.came.get(offset, [])
        if missed == ALL:
            # Nothing of these is missed, so their numbers are exact.
            assert (offset in waits) == (most is None or len(came) < most)
        if most is None:
            assert offset in waits
        if offset in waits:
            number, at_ms, *_ = waits[offset].occurrence
            assert number > len(came) if missed != ALL else number == len(came) + 1
            assert (at_ms - begun_ms[offset]) % (10 * SECOND) == 0
            assert not came or at_ms > came[-1][1]
            assert missed != ALL or at_ms == begun_ms[offset] + 10 * SECOND * number
    # The same copy again, before the new checkpoint has run. Its records begin later.
    job.table, job.born = copied, born
    job.rebuild()
    waiting = job.waiting()
    again = dict(zip(waiting.column("offset").to_pylist(), waiting_in(waiting), strict=True))
    assert len(again) == waiting.num_rows, "one of each"
    if most is None:
        assert set(again) == {*range(5)}
    for offset, each in again.items():
        came = job.came.get(offset, [])
        assert each.occurrence.number > len(came)
        assert not came or each.occurrence.at_ms > came[-1][1]
    # The same after a batch.
    job.run(clock_ms + 100 * SECOND, 60 * SECOND)
    job.rebuild()
    if most is None:
        assert set(job.waiting().column("offset").to_pylist()) == {*range(5)}


@pytest.mark.parametrize(
    ("stored", "followed", "repaired", "lacks"),
    [
        (7, 6, False, False),
        (9, 9, False, False),
        (6, 6, False, True),
        # A copy that was made between the two commits of a batch.
        (7, 5, False, True),
        (7, None, False, True),
        (None, 6, False, True),
        (7, 6, True, True),
    ],
)
def test_a_table_lacks_what_followed_if_markers_know_more_or_it_was_repaired(
    stored: int | None, followed: int | None, repaired: bool, lacks: bool
) -> None:
    span = BatchSpan(CheckpointOrigin("c", 1, 2), 9)
    staged = StagedMessages((Progress(span, in_table=InTable(7, 3)), Progress(span, in_table=InTable(5, 6))))
    versions = {"c": stored, writer_of_following("c"): followed}.get
    store = SimpleNamespace(newest_of=versions, is_fenced={writer_of_repair("c"): repaired}.get)
    assert lacks_following(cast(Any, store), staged) == lacks
    new = StagedMessages((Progress(span),))
    assert not lacks_following(cast(Any, SimpleNamespace(newest_of=lambda _: None, is_fenced=lambda _: False)), new)


@pytest.mark.parametrize(("first_bucket", "generation", "lacks"), [(0, 1, False), (0, 2, False), (9, 2, True)])
def test_a_copy_from_before_a_checkpoint_replaced_another_lacks_what_followed(
    first_bucket: int, generation: int, lacks: bool
) -> None:
    """Even before a batch of the checkpoint has stored following occurrences. A fresh one has a new generation too."""
    new = StagedMessages((Progress(BatchSpan(CheckpointOrigin("c", generation, 1, first_bucket))),))
    fences: dict[str, bool] = {}
    store = cast(Any, SimpleNamespace(newest_of=lambda _: None, is_fenced=lambda writer: fences.get(writer, False)))
    assert lacks_following(store, new) == lacks
    fences[writer_of_birth("c")] = True
    assert not lacks_following(store, new)


def test_a_restored_schedule_goes_on_with_what_the_bound_of_the_last_batch_of_its_shard_put_off() -> None:
    """The newest batch was cut off before it staged anything of the shard."""
    messages = published(*[ALL] * 5)
    origin = CheckpointOrigin("c", 1, SHARDS, 1, START_MS)
    bounded = BatchSpan(origin, 1, START_MS + 10 * SECOND, START_MS + 100 * SECOND)
    newest = BatchSpan(origin, 2, START_MS + 100 * SECOND, START_MS + 200 * SECOND)
    last, other = (OrderKey(START_MS + each * SECOND, "z", 0, 0) for each in (45, 120))
    markers = Progress(bounded, 1, last, 1, START_MS + 50 * SECOND), Progress(newest, 1, other)

    def numbers(*markers: Progress) -> list[set[int]]:
        left = schedules._left_of_lost(StagedMessages(markers), messages)
        return [{each.occurrence.number for each in waiting_in(own)} for _, own in by_shard(left, SHARDS)]

    assert numbers(*markers) == [{5}, {13}]
    # The batch before the newest one had a bound too, so the newest one has begun with what that put off.
    begun = replace(markers[1], last=OrderKey(START_MS + 80 * SECOND, "z", 0, 0))
    assert numbers(markers[0], replace(begun, occurrences_from_ms=START_MS + 60 * SECOND)) == [{5}, {9}]


def test_an_occurrence_that_was_taken_in_an_intact_table_has_ended() -> None:
    """The message was cancelled, and its id is forgotten."""
    job = Job(table=[(0, published(ONE))])
    job.run(START_MS, 60 * SECOND)
    job.run(START_MS + 60 * SECOND, 60 * SECOND, other=True)
    job.table = job.table[:1]
    job.rebuild()
    assert not job.waiting().num_rows


def test_occurrences_that_several_batches_left_out_begin_no_second_chain() -> None:
    """Such batches stage nothing, so no marker says that they ran."""
    messages = published(NONE, NONE, every_s=600)
    job = Job(table=[(0, messages)])
    clock_ms = START_MS + 590 * SECOND
    job.run(clock_ms, 60 * SECOND)
    for _ in range(3):
        # Nothing is staged in time, and the next one is not due before the cutoff.
        clock_ms += 700 * SECOND
        job.run(clock_ms, SECOND)
    job.rebuild()
    check(job, messages, every_s=600)
    job.run(clock_ms + 1_200 * SECOND, 60 * SECOND)
    check(job, messages, every_s=600)


@pytest.mark.parametrize("due_ms", [10, 20, 30])
def test_all_occurrences_before_the_one_that_waits_are_superseded(due_ms: int) -> None:
    messages = published(NONE).set_column(0, "deliver_at_ms", pa.array([due_ms]))
    own = messages.select(ID).append_column("deliver_at_ms", pa.array([30]))
    assert Superseded(own).contains_mask(messages).tolist() == [due_ms < 30]
    assert Superseded(own).end_ms == 30
    assert not Superseded()
