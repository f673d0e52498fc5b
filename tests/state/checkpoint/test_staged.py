"""Which messages are staged according to the markers, against a small model of the whole service."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conf.errors import CheckpointMismatch
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from state.checkpoint.progress import BatchSpan, Progress, committed_messages
from state.checkpoint.staged import StagedMessages, newest_checkpoint, restored_marker
from state.order import OrderKey
from tests.messages import messages
from tests.state.checkpoint.service_model import Model, Row, id_of
from tests.thorough import examples

SEEDS = st.integers(0, 10**9)


@pytest.mark.parametrize("loses", [0.0, 0.5])
@given(SEEDS, st.integers(0, 12), st.integers(0, 12), st.integers(1, 4), st.booleans())
@settings(max_examples=examples(100))
def test_the_markers_determine_exactly_which_messages_are_delivered(
    loses: float, seed: int, before: int, after: int, shards: int, finished: bool
) -> None:
    model = Model(random.Random(seed), loses=loses)
    for _ in range(before):
        model.batch()
    if before:
        model.rescale(shards)
    for _ in range(after):
        model.batch()
    model.batch(finished)
    newest = newest_checkpoint([model.markers.get(shard) for shard in range(max(model.markers) + 1)])
    assert newest is not None
    for row in model.accepted:
        is_staged = id_of(row) in model.staged
        buckets = [bucket for bucket, rows in model.sealed.items() if row in rows]
        if buckets:
            assert newest.of_bucket(messages([row]), buckets[0])[0] == is_staged
            assert is_staged or row["deliver_at_ms"] >= newest.whole_before_ms
        else:
            assert newest.of_input(messages([row]))[0] == is_staged
        if is_staged and not row["error_code"]:
            assert row["deliver_at_ms"] < newest.cutoff_ms


@pytest.mark.parametrize(("cancels", "loses"), [(0.0, 0.0), (0.3, 0.0), (0.9, 0.0), (0.3, 0.4)])
@given(SEEDS, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.booleans()), min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_repeatedly_lost_checkpoints_lose_and_duplicate_no_message_and_deliver_none_that_is_cancelled(
    cancels: float, loses: float, seed: int, checkpoints: list[tuple[int, int, bool]]
) -> None:
    model = Model(random.Random(seed), cancels, loses)
    for batches, shards, finished in checkpoints:
        for _ in range(batches):
            model.batch()
        model.batch(finished)
        model.rebuild(shards)
    model.clock_ms += 1000
    for _ in range(3):
        model.batch()
    model.clock_ms += 1000
    model.batch()
    due = {id_of(row) for row in model.accepted if row["deliver_at_ms"] < model.cutoff_ms or row["error_code"]}
    # Not if each message was cancelled, and forgotten.
    assume(due)
    assert due <= model.staged | model.cancelled


def test_without_a_marker_of_each_shard_the_newest_checkpoint_is_unknown() -> None:
    origin = CheckpointOrigin("c", 2, 2)
    mine, old = Progress(BatchSpan(origin)), Progress(BatchSpan(CheckpointOrigin("b", 2, 3)))
    assert newest_checkpoint([mine, None]) is None
    assert newest_checkpoint([mine, old]) is None
    assert newest_checkpoint([]) is None
    assert newest_checkpoint([mine, mine, old]) == StagedMessages((mine, mine))


def test_a_restored_marker_says_that_all_is_staged_until_its_batch_which_must_not_run_again() -> None:
    origin = CheckpointOrigin("c", 2, 1)
    marker = restored_marker(origin, PlannedBatch(7, 80, 95, {"delayline-in": {"0": 5}}), {"delayline-in": ["id"]})
    newest = newest_checkpoint([Progress.from_bytes(marker.to_bytes())])
    assert newest is not None
    assert (newest.last_batch, newest.cutoff_ms, newest.whole_before_ms) == (7, 95, 95)
    rows: list[Row] = [{"deliver_at_ms": due, "offset": offset} for due, offset in ((94, 4), (95, 4), (94, 5))]
    rows.append({"deliver_at_ms": 99, "offset": 4, "error_code": "bad-deliver-at", "error_text": "bad"})
    assert newest.of_input(messages(rows)).tolist() == [True, False, False, True]
    # As if the entry of the commit log were lost later.
    replayed = BatchSpan(origin, 7, 80, 95, {}, {"delayline-in": {"0": 5}}, {"delayline-in": ["id"]}, 60)
    with pytest.raises(CheckpointMismatch, match="Its entry was lost"):
        committed_messages(marker, replayed)
    assert restored_marker(origin, None, {}) == Progress(BatchSpan(origin))


@pytest.mark.parametrize(("offset", "staged"), [(4, True), (5, False)])
def test_input_before_the_offsets_of_the_origin_is_staged(offset: int, staged: bool) -> None:
    newest = StagedMessages((Progress(BatchSpan(CheckpointOrigin("c", 2, 1, offsets={"delayline-in": {"0": 5}}))),))
    assert newest.of_input(messages([{"offset": offset}])).tolist() == [staged]
    assert newest.of_input(messages([{"offset": 0, "partition": 1}])).tolist() == [False]
    assert np.array_equal(newest.of_input(messages([])), [])


def test_offsets_in_a_topic_that_was_deleted_say_nothing_of_the_topic_that_was_created_again() -> None:
    topic = "delayline-in"
    old, new = {topic: ["old"]}, {topic: ["old", "new"]}
    offsets = {topic: {"0": 5}}
    origin = CheckpointOrigin("c", 2, 2, offsets=offsets, input_ids=old)
    before = BatchSpan(origin, 3, 50, 60, offsets, {topic: {"0": 9}}, old)
    after = BatchSpan(origin, 7, 80, 90, {topic: {"0": 2}}, {topic: {"0": 4}}, new)
    lasts = [OrderKey(85, topic, 0, 3), OrderKey(55, topic, 0, 8)]
    records = messages([{"offset": offset, "deliver_at_ms": 70} for offset in range(6)])

    markers = (Progress(before, 1, lasts[1]), Progress(before, 1, lasts[1]))
    assert StagedMessages(markers).ends == {topic: {"0": 9}}
    # All records below the offsets of the origin were staged or sealed when the checkpoint began.
    assert StagedMessages(markers).of_input(records).tolist() == [True] * 5 + [False]

    for number in range(2):
        newest = StagedMessages(
            tuple(Progress(after if at == number else before, 1, lasts[at != number]) for at in range(2))
        )
        assert newest.input_ids == new
        assert newest.ends == {topic: {"0": 4}}
        # Accepted before the newest batch, which has staged messages due below 80. Others may be its own.
        assert newest.of_input(records)[:2].tolist() == [True, True]
        assert newest.of_input(records)[4:].tolist() == [False, False]


def test_a_sealed_dead_letter_is_delivered_at_its_due_time_and_not_before() -> None:
    origin = CheckpointOrigin("c", 2, 1, first_bucket=5, cutoff_ms=60)
    # The shard's last message was a dead letter: the first batch staged it, with a cutoff far below its due time.
    marker = Progress(BatchSpan(origin, 0, 0, 61), 1, OrderKey(90, "delayline-in", 0, 9))
    sealed = messages([{"deliver_at_ms": 76, "offset": 7, "error_code": "bad-deliver-at", "error_text": "bad"}])
    assert StagedMessages((marker,)).of_bucket(sealed, 4).tolist() == [False]
    assert StagedMessages((Progress(BatchSpan(origin, 1, 77, 95)),)).of_bucket(sealed, 4).tolist() == [True]
