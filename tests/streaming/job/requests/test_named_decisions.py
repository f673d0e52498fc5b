"""Decisions of a batch about requests by names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from state.cancel import MessageId
from streaming.job.requests.decision import Decision
from tests.streaming.job.requests.desk_bench import BATCH, CLOCK_MS, PREVIOUS_MS, READ, TOPIC, each_of, seal, span
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.named_requests import FAR_MS, Given, decide, desk_of, holders, name, place, store_of

pytestmark = pytest.mark.usefixtures("known_from", "markers", "recalled")


@pytest.fixture
def store(memory_table: MemoryTable) -> MemoryTable:
    """An empty table of sealed buckets."""
    return memory_table


def test_what_waits_under_the_name_is_cancelled_and_nobody_gets_an_answer(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000, _2=6_000)
    name(store, 4, a=(1, 5_000), b=(2, 6_000))
    answers, decision = decide(store, (50, "a", FAR_MS), (51, "new", FAR_MS))
    assert answers == {}
    assert {each.id for each in each_of(decision.cancelled)} == {place(1)}
    assert holders(decision) == {"a": 50, "new": 51}
    assert decision.left_out == {}
    store_of(store, BATCH, decision)
    answers, decision = decide(store, (52, "a", None), (53, "b", None), (54, "c", None), of=span(BATCH + 1))
    assert {offset: (answer["id"], answer["result"]) for offset, answer in answers.items() if offset != 52} == {
        53: ("delayline-in/0/2", "cancelled"),
        54: (None, "unknown"),
    }


# Due far away, and so soon that the batch would have staged it.
@pytest.mark.parametrize("due_ms", [FAR_MS, PREVIOUS_MS - 1])
def test_a_cancel_by_name_is_answered_in_a_later_batch_as_in_that_of_its_message(
    store: MemoryTable, due_ms: int
) -> None:
    cancelled = {"id": "delayline-in/0/50", "result": "cancelled", "reason": "withdrawn"}
    answers, decision = decide(store, (50, "a", due_ms), (51, "a", None))
    assert answers == {51: cancelled}
    store_of(store, BATCH, decision)
    answers, decision = decide(store, (52, "a", None), of=span(BATCH + 1))
    assert (answers, each_of(decision.cancelled)) == ({52: cancelled}, [])
    answers, decision = decide(store, (53, "a", FAR_MS), of=span(BATCH + 2))
    assert (answers, holders(decision)) == ({}, {"a": 53}), "and nobody asks the release processes for it"


def test_a_replay_decides_the_same(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000))
    given: list[Given] = [(50, "a", FAR_MS), (51, "a", None), (52, "b", FAR_MS), (53, "b", FAR_MS + 1)]
    first = decide(store, *given)
    assert first[0][51]["id"] == "delayline-in/0/50"
    assert first[0][51]["result"] == "cancelled"
    store_of(store, BATCH, first[1])
    again = decide(store, *given)
    assert again[0] == first[0]
    assert again[1].answers.equals(first[1].answers)
    assert again[1].cancelled.equals(first[1].cancelled)
    assert again[1].names.equals(first[1].names)


def test_of_one_batch_only_the_last_message_of_a_name_comes_out(store: MemoryTable) -> None:
    _, decision = decide(store, (50, "a", FAR_MS), (51, "a", 5), (52, "a", FAR_MS))
    assert {each.id[2]: each.from_ms for each in each_of(decision.cancelled)} == {50: FAR_MS, 51: 5}
    assert decision.left_out[TOPIC, 0].tolist() == [50, 51]
    assert holders(decision) == {"a": 52}


def test_an_ask_for_what_is_staged_goes_on_with_the_messages_id(store: MemoryTable) -> None:
    # Between the batch's clock and the cutoff before it.
    name(store, 4, a=(1, 900), b=(2, 900))
    answers, decision = decide(store, (50, "a", FAR_MS), (51, "b", None))
    assert answers == {50: ("goes on", "delayline-in/0/1"), 51: ("goes on", "delayline-in/0/2")}
    assert holders(decision) == {"a": 50}
    assert each_of(decision.cancelled) == []


def test_a_name_whose_message_was_cancelled_and_forgotten_is_no_ask_for_the_release(store: MemoryTable) -> None:
    # Due after the cutoff before, and in no bucket: it was cancelled, and its input record is deleted since.
    name(store, 4, a=(1, FAR_MS), b=(2, FAR_MS))
    answers, _ = decide(store, (50, "a", FAR_MS), (51, "b", None))
    assert answers == {51: {"id": "delayline-in/0/2", "result": "cancelled", "reason": "withdrawn"}}


def test_what_a_lost_batch_has_stored_of_records_that_are_read_again_does_not_count(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000))
    name(store, 5, a=(READ, FAR_MS))
    again = span(ends={TOPIC: {"0": READ + 1}}, first_bucket=6, offsets={TOPIC: {"0": READ}})
    answers, decision = decide(store, (READ, "a", FAR_MS), of=again)
    assert answers == {}
    assert {each.id for each in each_of(decision.cancelled)} == {place(1)}
    assert holders(decision) == {"a": READ}


@pytest.mark.parametrize("has_answered", [False, True])
def test_of_a_replay_as_much_is_staged_whatever_was_answered_since(
    store: MemoryTable, recalled: list[MessageId], has_answered: bool
) -> None:
    name(store, 4, a=(1, 900))
    recalled += [place(1)] if has_answered else []
    goes_on, is_known = (
        ("goes on", "delayline-in/0/1"),
        {"id": "delayline-in/0/1", "result": "cancelled", "reason": "withdrawn"},
    )
    # A release process that has started since would take an unknown message for a staged one.
    assert decide(store, (50, "a", FAR_MS))[0] == {50: is_known if has_answered else goes_on}


def test_a_replay_passes_on_as_many_asks_although_the_record_of_what_was_cancelled_is_deleted(
    store: MemoryTable, known_from: dict[tuple[str, int], int]
) -> None:
    known_from[TOPIC, 0] = READ
    desk = desk_of(store, forget_every_s=-1.0)
    # So late that later batches would have staged it.
    later, clock_ms = span(BATCH + 1, previous_ms=5_500), 3_000
    _, decision = decide(store, (50, "a", 5_000), found=[50], desk=desk)
    assert {each.id for each in each_of(decision.cancelled)} == {place(50)}
    store_of(store, BATCH, decision)
    desk.stored(decision, span(), CLOCK_MS)
    desk.stored(Decision(), later, clock_ms)
    # The same batch, by the facts that this process knows and by those that a new one reads.
    again = replace(later, batch_id=later.batch_id + 1)
    both = [decide(store, (52, "a", FAR_MS), of=again, clock_ms=clock_ms + 100, desk=each)[1] for each in (desk, None)]
    assert both[0].answers.equals(both[1].answers)
    assert both[0].answers.column("value").to_pylist() == [None]
    desk.close()


def test_a_replay_finds_the_same_holder_after_the_clock_went_back(store: MemoryTable) -> None:
    desk = desk_of(store, forget_every_s=-1.0)
    later = span(BATCH + 1, previous_ms=5_000)
    _, decision = decide(store, (50, "a", 3_000), desk=desk)
    store_of(store, BATCH, decision)
    desk.stored(decision, span(), CLOCK_MS)
    desk.stored(Decision(), later, 4_000)
    again = replace(later, batch_id=later.batch_id + 1)
    both = [decide(store, (52, "a", FAR_MS), of=again, clock_ms=2_500, desk=each) for each in (desk, None)]
    assert both[0][0] == both[1][0] == {52: ("goes on", "delayline-in/0/50")}
    desk.close()


def test_a_name_is_free_once_its_message_is_delivered(store: MemoryTable) -> None:
    name(store, 4, a=(1, FAR_MS), b=(2, FAR_MS))
    name(store, 5, until_ms=FAR_MS, a=(3, CLOCK_MS - 1))
    answers, decision = decide(store, (50, "a", None), (51, "c", CLOCK_MS - 1))
    assert (answers[50]["id"], answers[50]["result"]) == (None, "unknown"), "the message before the newest is no more"
    assert holders(decision) == {}, "and of what is due at once no row is needed"
    _, decision = decide(store, (51, "b", CLOCK_MS - 1))
    assert holders(decision) == {"b": 51}, "unless the row of the message before would be found instead"


def test_a_batch_that_only_gives_names_cancels_nothing(store: MemoryTable) -> None:
    answers, decision = decide(store, (50, "a", FAR_MS))
    assert (answers, decision.cancelled.num_rows, decision.left_out) == ({}, 0, {})


def test_a_message_that_takes_a_name_over_has_an_answer_if_it_wants_one(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000), b=(2, 900))
    answers, decision = decide(store, (50, "a", FAR_MS), (51, "b", FAR_MS), wants_answer=True)
    assert answers == {
        50: {"id": "delayline-in/0/1", "result": "cancelled", "reason": "withdrawn"}
        | {"replacement": "delayline-in/0/50", "accepted": True},
        51: ("goes on", "delayline-in/0/2"),
    }
    (key,) = (row["key"] for row in decision.answers.to_pylist() if row["offset"] == 50)
    assert key == b"delayline-in/0/1"
