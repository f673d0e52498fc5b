"""Decisions of a batch about messages that keep their names: the later ones of a name are dropped."""

from __future__ import annotations

import pytest

from sinks.buckets.bucket_table import ALL_BUCKETS
from state.buckets.parts import IdRows
from state.cancel import MessageId
from state.names import KEEP
from state.reasons import Reason
from tests.streaming.job.requests.desk_bench import BATCH, PREVIOUS_MS, TOPIC, each_of, seal, span
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.named_requests import FAR_MS, Given, decide, holders, kept, name, place, store_of

pytestmark = pytest.mark.usefixtures("known_from", "markers", "recalled")


@pytest.fixture
def store(memory_table: MemoryTable) -> MemoryTable:
    """An empty table of sealed buckets."""
    return memory_table


def names_left(store: MemoryTable) -> int:
    """Return how many rows of names the table has."""
    return sum(ids.num_rows for ids in store.ids_before(IdRows.NAMED, ALL_BUCKETS))


def test_what_a_message_that_repeats_had_the_name_from_does_not_come_back_once_names_are_joined(
    store: MemoryTable,
) -> None:
    name(store, 2, keeps=True, a=(1, FAR_MS))
    name(store, 3, until_ms=FAR_MS, keeps=True, a=(2, 100))
    for number, due_ms in ((4, 150), (5, 200), (6, 300)):
        name(store, number, keeps=True, a=(2, due_ms))
    # With its first occurrence, and without.
    for joined in ([3, 4], [5, 6], [4, 6]):
        store.join_names(joined, 500)
        _, decision = decide(store, (50, "a", FAR_MS), mode=KEEP)
        assert not decision.drops
    store.join_names([2, 6], 500)
    assert names_left(store) == 1


def test_what_is_dropped_is_cancelled_and_answered_to_who_wants_an_answer(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000), keeps=True)
    given: list[Given] = [(50, "a", FAR_MS), (51, "a", 5), (52, "new", FAR_MS)]
    for wants_answer in (False, True):
        answers, decision = decide(store, *given, mode=KEEP, wants_answer=wants_answer)
        assert {each.id[2]: (each.from_ms, each.until_ms) for each in each_of(decision.cancelled)} == {
            50: (FAR_MS, FAR_MS), 51: (5, 5),
        }  # fmt: skip
        assert decision.left_out[TOPIC, 0].tolist() == [50, 51]
        assert holders(decision) == {"new": 52}
        assert bool(answers) == wants_answer
        assert decision.shows(PREVIOUS_MS), "the message that keeps its name may be staged"
    kept_by = {"id": "delayline-in/0/1", "result": "kept", "reason": "name-kept", "why": Reason.NAME_KEPT.why}
    by_none = {"id": None, "result": "unknown", "reason": "no-such-name", "why": Reason.NO_SUCH_NAME.why}
    assert answers == {
        50: kept_by | {"replacement": "delayline-in/0/50", "accepted": False},
        51: kept_by | {"replacement": "delayline-in/0/51", "accepted": False},
        52: by_none | {"replacement": "delayline-in/0/52", "accepted": True},
    }
    keys = {row["offset"]: row["key"] for row in decision.answers.to_pylist()}
    assert keys == {50: b"delayline-in/0/1", 51: b"delayline-in/0/1", 52: None}, "the last one stays the name"


@pytest.mark.parametrize("by_name", [True, False])
def test_what_is_staged_and_was_asked_for_keeps_no_name_in_later_batches(
    store: MemoryTable, recalled: list[MessageId], by_name: bool
) -> None:
    # Between the batch's clock and the cutoff before it.
    name(store, 4, a=(1, 900), keeps=True)
    _, decision = decide(store, (50, "a", FAR_MS), mode=KEEP)
    assert decision.left_out[TOPIC, 0].tolist() == [50]
    if by_name:
        answers, decision = decide(store, (51, "a", None))
        assert answers == {51: ("goes on", "delayline-in/0/1")}
    else:
        _, decision = decide(store, not_found=[1])
    assert kept(decision.names) == {"a": (1, False)}
    store_of(store, BATCH, decision)
    # The outcome of that is not known when a replay decides. It is decided twice, with more known the second time.
    after = span(BATCH + 1)
    decisions = []
    for more in ([], [place(1)]):
        recalled += more
        decisions.append(decide(store, (52, "a", FAR_MS), of=after, mode=KEEP)[1])
    for decision in decisions:
        assert decision.left_out == {}
        assert kept(decision.names) == {"a": (52, True)}
    store_of(store, BATCH + 1, decisions[0])
    _, decision = decide(store, (53, "a", FAR_MS), of=span(BATCH + 2), mode=KEEP)
    assert decision.left_out[TOPIC, 0].tolist() == [53]


def test_a_replay_drops_the_same_whatever_was_recalled_since(store: MemoryTable, recalled: list[MessageId]) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000), b=(2, 900), c=(3, 900), keeps=True)
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", FAR_MS), (52, "c", FAR_MS), (53, "d", 5), (54, "d", FAR_MS)]
    first = decide(store, *given, not_found=[3], mode=KEEP, wants_answer=True)
    assert first[1].left_out[TOPIC, 0].tolist() == [50, 51, 54]
    store_of(store, BATCH, first[1])
    recalled += [place(2), place(3)]
    again = decide(store, *given, not_found=[3], mode=KEEP, wants_answer=True)
    assert again[1].left_out[TOPIC, 0].tolist() == [50, 51, 54]
    assert again[1].cancelled.equals(first[1].cancelled)
    assert again[1].names.equals(first[1].names)
    assert {offset for offset, answer in again[0].items() if answer != first[0][offset]} == {52}, "it is known now"


def test_a_message_that_was_cancelled_by_its_id_is_followed_by_the_next_of_its_name(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000), keeps=True)
    _, decision = decide(store, not_found=[1])
    assert {each.id for each in each_of(decision.cancelled)} == {place(1)}
    store_of(store, BATCH, decision)
    _, decision = decide(store, (50, "a", FAR_MS), of=span(BATCH + 1), mode=KEEP)
    assert (decision.left_out, holders(decision)) == ({}, {"a": 50})
