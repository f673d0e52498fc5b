"""Looking names up: the message that each request is for, dropped messages, and due times that are taken over."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.cancel import ALWAYS, NOTHING, requests_of
from state.message_ids import ids_of
from state.names import KEEP, KEEP_TIME
from streaming.job.requests.names import Holder, LookedUp, in_turn
from tests.streaming.job.requests.desk_bench import CLOCK_MS, PREVIOUS_MS, hash_of, name_of
from tests.streaming.job.requests.named_requests import FAR_MS, Given, asked_in, kept, place, requests_for


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)),
    st.randoms(),
)
def test_names_are_given_and_taken_over_as_in_the_model(
    steps: list[tuple[str, int | None]], before: dict[str, int], random: Any
) -> None:
    given: list[Given] = [(10 + at, name, due) for at, (name, due) in enumerate(steps)]
    # A cancel leaves the name to the message that it cancels: a later request gets the same answer.
    holds: dict[str, int | None] = dict(before)
    asked, superseded = {}, set()
    for offset, name, due in given:
        asked[offset] = holds.get(name)
        if (old := holds.get(name)) is not None and old >= 10:
            superseded.add(old)
        if due is not None:
            holds[name] = offset
    shuffled = list(given)
    random.shuffle(shuffled)
    known = {hash_of(name): Holder(place(offset), FAR_MS, FAR_MS) for name, offset in before.items()}
    found = in_turn(requests_for(*shuffled), known, PREVIOUS_MS, 0)
    expected = {offset: NOTHING if old is None else place(old) for offset, old in asked.items()}
    assert {request.id[2]: request.asked for request in requests_of(found.requests)} == expected
    assert set(found.superseded.column("offset").to_pylist()) == superseded
    left = {name: offset for name, offset in holds.items() if offset is not None and offset >= 10}
    rows = zip(found.names.column("name").to_pylist(), found.names.column("offset").to_pylist(), strict=True)
    assert {name_of(name): offset for name, offset in rows} == left


def test_a_message_takes_no_name_over_from_a_message_with_its_own_id() -> None:
    # The known messages are from a deleted input topic. A message of the new topic must not be cancelled with them.
    known = {hash_of("a"): Holder(place(5), FAR_MS, FAR_MS), hash_of("b"): Holder(place(6), FAR_MS, FAR_MS)}
    found = in_turn(requests_for((5, "a", FAR_MS), (7, "b", FAR_MS)), known, PREVIOUS_MS, CLOCK_MS)
    assert [request.asked for request in requests_of(found.requests)] == [NOTHING, place(6)]
    assert found.names.column("offset").to_pylist() == [5, 7]


def dropped_for(found: LookedUp) -> dict[int, int]:
    """Return the offset of the message that keeps the name, by the offset of each dropped one."""
    return {request.id[2]: request.asked[2] for request in requests_of(found.dropped)}


def test_the_first_of_a_name_stays_until_somebody_asks_for_it() -> None:
    requests = requests_for(
        (50, "a", FAR_MS), (51, "a", 5), (52, "b", FAR_MS), (54, "b", FAR_MS), (55, "b", 5), mode=KEEP
    )
    cancel = requests_for((53, "b", None))
    found = in_turn(pa.concat_tables([requests, cancel]), {}, PREVIOUS_MS, CLOCK_MS)
    assert dropped_for(found) == {51: 50, 55: 54}
    assert asked_in(found) == {50: -1, 52: -1, 53: 52, 54: 52}
    assert found.superseded.column("offset").to_pylist() == [52]
    assert kept(found.names) == {"a": (50, True), "b": (54, True)}
    assert {request.condition for request in requests_of(found.requests)} == {ALWAYS, None}


def test_a_message_that_is_asked_for_by_its_id_keeps_no_name_whatever_the_order() -> None:
    known = {hash_of("a"): Holder(place(5), FAR_MS, FAR_MS, keeps=True)}
    requests = requests_for((50, "a", FAR_MS), (51, "b", FAR_MS), (52, "b", FAR_MS), mode=KEEP)
    found = in_turn(requests, known, PREVIOUS_MS, CLOCK_MS, by_id=ids_of([place(5), place(51)]))
    assert dropped_for(found) == {}
    assert asked_in(found) == {50: 5, 51: -1, 52: 51}
    assert kept(found.names) == {"a": (50, True), "b": (52, True)}


@pytest.mark.parametrize(
    ("due_ms", "published_ms", "is_dropped"),
    [
        # Sealed: it comes out after the batch, whenever the record was published.
        (PREVIOUS_MS, PREVIOUS_MS + 1, True),
        # Staged.
        (PREVIOUS_MS - 1, PREVIOUS_MS - 1, True),
        (PREVIOUS_MS - 1, PREVIOUS_MS, False),
        (CLOCK_MS, 0, True),
        (CLOCK_MS - 1, 0, False),
    ],
)
def test_no_message_is_dropped_for_one_that_was_out_when_it_was_published(
    due_ms: int, published_ms: int, is_dropped: bool
) -> None:
    known = {hash_of("a"): Holder(place(5), due_ms, due_ms, keeps=True)}
    requests = requests_for((50, "a", FAR_MS), mode=KEEP, published_ms=published_ms)
    found = in_turn(requests, known, PREVIOUS_MS, CLOCK_MS)
    assert bool(dropped_for(found)) == is_dropped
    # The other one comes out too: no request is for it.
    assert asked_in(found) == ({} if is_dropped else {50: -1})


@pytest.mark.parametrize(("published_ms", "is_dropped"), [(PREVIOUS_MS, True), (PREVIOUS_MS + 1, False)])
def test_a_message_of_the_batch_keeps_its_name_until_it_is_due(published_ms: int, is_dropped: bool) -> None:
    # If the checkpoint before was lost, the first one may have come out when the second one was published.
    first = requests_for((50, "a", PREVIOUS_MS), mode=KEEP)
    later = requests_for((51, "a", FAR_MS), mode=KEEP, published_ms=published_ms)
    found = in_turn(pa.concat_tables([first, later]), {}, PREVIOUS_MS, CLOCK_MS)
    assert dropped_for(found) == ({51: 50} if is_dropped else {})
    assert asked_in(found) == ({50: -1} if is_dropped else {50: -1, 51: -1})
    assert not found.superseded.num_rows
    assert kept(found.names) == {"a": (50, True) if is_dropped else (51, True)}


def retimed_in(found: LookedUp) -> dict[int, tuple[int, int]]:
    """Return the due time that each message has taken over, and the later one of that and its own, by its offset."""
    return {row["offset"]: (row["deliver_at_ms"], row["until_ms"]) for row in found.retimed.to_pylist()}


def test_a_message_takes_over_the_due_time_of_the_one_that_it_replaces_sooner_or_later_than_its_own() -> None:
    known = {each: Holder(place(5 + at), FAR_MS + at, FAR_MS + at, True) for at, each in enumerate(map(hash_of, "ab"))}
    requests = requests_for(
        (50, "a", FAR_MS + 9), (51, "b", 3), (52, "c", 7), (53, "c", 2), (54, "c", 9), mode=KEEP_TIME
    )
    found = in_turn(requests, known, PREVIOUS_MS, 0)
    assert dropped_for(found) == {}
    assert asked_in(found) == {50: 5, 51: 6, 52: -1, 53: 52, 54: 53}
    # The one in between has no due time of its own: it is cancelled where its record has put it.
    assert retimed_in(found) == {50: (FAR_MS, FAR_MS + 9), 51: (FAR_MS + 1, FAR_MS + 1), 54: (7, 9)}
    assert [row["from_ms"] for row in found.superseded.to_pylist()] == [7, 2]
    dues = dict(
        zip(found.names.column("offset").to_pylist(), found.names.column("deliver_at_ms").to_pylist(), strict=True)
    )
    assert dues == {50: FAR_MS, 51: FAR_MS + 1, 54: 7}
    assert kept(found.names) == {"a": (50, True), "b": (51, True), "c": (54, True)}


def test_a_message_that_is_cancelled_with_its_batch_is_known_until_the_due_time_that_it_has_taken_over() -> None:
    for holder_ms, until_ms in ((FAR_MS, FAR_MS), (PREVIOUS_MS + 1, PREVIOUS_MS + 2)):
        known = {hash_of("a"): Holder(place(5), holder_ms, holder_ms, True)}
        message = requests_for((50, "a", PREVIOUS_MS + 2), mode=KEEP_TIME)
        found = in_turn(pa.concat_tables([message, requests_for((51, "a", None))]), known, PREVIOUS_MS, 0)
        (row,) = found.superseded.to_pylist()
        assert (row["offset"], row["from_ms"], row["until_ms"]) == (50, PREVIOUS_MS + 2, until_ms)


def test_a_message_that_is_asked_for_gives_no_due_time_and_takes_none() -> None:
    known = {each: Holder(place(5 + at), FAR_MS, FAR_MS, True) for at, each in enumerate(map(hash_of, "abc"))}
    cancel, requests = (
        requests_for((49, "a", None)),
        requests_for(*((50 + at, each, 9) for at, each in enumerate("aabcc")), mode=KEEP_TIME),
    )
    found = in_turn(pa.concat_tables([cancel, requests]), known, PREVIOUS_MS, 0, by_id=ids_of([place(6), place(53)]))
    assert asked_in(found) == {49: 5, 50: 5, 51: 50, 52: 6, 53: 7, 54: 53}
    assert retimed_in(found) == {51: (9, 9)}


@pytest.mark.parametrize(
    ("due_ms", "published_ms", "takes"),
    [
        # Sealed: it waits, however long it is due.
        (PREVIOUS_MS, PREVIOUS_MS + 1, True),
        # Staged.
        (PREVIOUS_MS - 1, PREVIOUS_MS - 1, True),
        (PREVIOUS_MS - 1, PREVIOUS_MS, False),
        (CLOCK_MS, 0, True),
        (CLOCK_MS - 1, 0, False),
    ],
)
def test_no_message_takes_over_the_due_time_of_one_that_was_out_when_it_was_published(
    due_ms: int, published_ms: int, takes: bool
) -> None:
    known = {hash_of("a"): Holder(place(5), due_ms, due_ms, keeps=True)}
    found = in_turn(
        requests_for((50, "a", FAR_MS), mode=KEEP_TIME, published_ms=published_ms), known, PREVIOUS_MS, CLOCK_MS
    )
    assert retimed_in(found) == ({50: (due_ms, FAR_MS)} if takes else {})
    assert asked_in(found) == {50: 5 if takes else -1}
    # In the same batch, both wait.
    several = [
        requests_for((49, "a", due_ms), mode=KEEP_TIME),
        requests_for((50, "a", FAR_MS), mode=KEEP_TIME, published_ms=published_ms),
    ]
    assert retimed_in(in_turn(pa.concat_tables(several), {}, PREVIOUS_MS, CLOCK_MS)) == {50: (due_ms, FAR_MS)}


@pytest.mark.parametrize(("own_ms", "request_ms"), [(FAR_MS, 700), (700, 701)])
def test_a_message_and_its_request_are_not_due_at_the_same_time(own_ms: int, request_ms: int) -> None:
    for due_ms, clock_ms, published_ms in ((request_ms, 700, 900), (request_ms, 900, 700), (request_ms - 1, 700, 900)):
        known = {hash_of("a"): Holder(place(5), due_ms, due_ms, keeps=True)}
        requests = requests_for((50, "a", own_ms), mode=KEEP_TIME, published_ms=published_ms)
        found = in_turn(requests, known, 0, 0, clock_ms=clock_ms)
        expected = due_ms + (due_ms == request_ms)
        assert retimed_in(found) == {50: (expected, max(expected, own_ms))}


def test_modes_of_two_messages_of_a_name_may_differ() -> None:
    # The policy was changed between them.
    for keeps, mode in ((True, ALWAYS), (False, KEEP)):
        known = {hash_of("a"): Holder(place(5), FAR_MS, FAR_MS, keeps)}
        found = in_turn(requests_for((50, "a", FAR_MS), mode=mode), known, PREVIOUS_MS, CLOCK_MS)
        assert (dropped_for(found), asked_in(found)) == ({}, {50: 5})
        assert kept(found.names) == {"a": (50, mode == KEEP)}
