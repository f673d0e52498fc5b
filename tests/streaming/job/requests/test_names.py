"""Looking names up, and the decisions of a batch about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.settings import Settings
from sinks.buckets.bucket_table import ALL_BUCKETS
from state.answers import Undecided
from state.buckets.cancelled import cancelled_rows
from state.buckets.parts import IdRows
from state.cancel import ALWAYS, NOTHING, REQUEST_SCHEMA, MessageId, requests_of
from state.checkpoint.progress import BatchSpan
from state.kinds import REQUEST
from state.message_ids import NO_IDS, Ids, ids_of
from state.names import KEEP, KEEP_TIME, NAMED_SCHEMA, name_rows
from state.reasons import Reason
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.names import Holder, LookedUp, in_turn, look_up
from streaming.job.requests.stored_ids import StoredIds
from tests.messages import cancelled
from tests.streaming.job.requests.desk_bench import (
    ASKED_SCHEMA,
    BATCH,
    CLOCK_MS,
    PREVIOUS_MS,
    READ,
    TOPIC,
    asked_rows,
    each_of,
    hash_of,
    name_of,
    output_of,
    seal,
    span,
)
from tests.streaming.job.requests.memory_table import MemoryTable

pytestmark = pytest.mark.usefixtures("known_from", "markers", "recalled")


@pytest.fixture
def store(memory_table: MemoryTable) -> MemoryTable:
    """An empty table of sealed buckets."""
    return memory_table


# Due far after the cutoff, unless a test says otherwise.
FAR_MS = 70_000
# A clock that is behind the due times of messages that an outage has kept.
AFTER_OUTAGE_MS = 50_000
# A request by a name: the offset of its record, the name, and when its message is due; None: it is a cancel.
Given = tuple[int, str, int | None]


def requests_for(*given: Given, mode: str = ALWAYS, published_ms: int = 0, wants_answer: bool = False) -> pa.Table:
    rows = [
        (
            *(*NOTHING, TOPIC, 0, offset, None if due is None else mode, due, hash_of(name)),
            *(published_ms, wants_answer, False, False),
        )
        for offset, name, due in given
    ]
    return pa.Table.from_pylist(
        [dict(zip(REQUEST_SCHEMA.names, row, strict=True)) for row in rows], schema=REQUEST_SCHEMA
    )


def place(offset: int) -> MessageId:
    return TOPIC, 0, offset


def decide(
    store: MemoryTable,
    *given: Given,
    of: BatchSpan | None = None,
    clock_ms: int = CLOCK_MS,
    found: Iterable[int] = (),
    desk: RequestDesk | None = None,
    not_found: Iterable[int] = (),
    **terms: Any,
) -> tuple[dict[int, Any], Decision]:
    """Return the answer to each request that gets one, and the decision. A request that goes on has its new key.

    The messages `found` are asked for by their ids as well, and the state stage has taken them out. The messages
    `not_found` are asked for too, but it had none of them. `desk` decides, or by default a new one that knows only the
    table. `terms` are passed to `requests_for`.
    """
    by_id = [(*place(offset), "asks", 1, offset, *[None] * 5, False, False) for offset in (*found, *not_found)]
    requests = [dict(zip(REQUEST_SCHEMA.names, row, strict=True)) for row in by_id]
    asked = pa.concat_tables([requests_for(*given, **terms), pa.Table.from_pylist(requests, schema=REQUEST_SCHEMA)])
    dues = {offset: due for offset, _, due in given}
    found_due_ms = [*[None] * len(given), *(dues.get(offset, FAR_MS) for offset in found), *(None for _ in not_found)]
    asked = asked.append_column(ASKED_SCHEMA.field("found_due_ms"), pa.array(found_due_ms, pa.int64()))
    frame, rows = output_of(store, asked_rows(asked))
    desk = desk or desk_of(store)
    decision = desk.decide(frame, rows, of or span(), clock_ms)
    answers: dict[int, Any] = {}
    to_names = [answer for answer in decision.answers.to_pylist() if answer["topic"] == TOPIC]
    for answer in to_names:
        value, key = answer["value"], answer["key"]
        if value is not None:
            is_open = answer["kind"] == REQUEST
            answers[answer["offset"]] = ("goes on", key.decode()) if is_open else json.loads(value)
            if is_open:
                assert Undecided.from_bytes(value).due_before_ms == (of or span()).cutoff_ms
    assert {answer["offset"] for answer in to_names} == {offset for offset, _, _ in given}
    return answers, decision


def desk_of(store: Any) -> RequestDesk:
    return RequestDesk(store, Settings())


def store_of(store: MemoryTable, number: int, decision: Decision) -> None:
    """Store the decision of the batch of bucket `number`."""
    tables = [cancelled_rows(decision.cancelled, number), name_rows(decision.names, number)]
    store.append(pa.concat_tables(tables), "checkpoint", number)


def name(store: MemoryTable, number: int, until_ms: int = 0, keeps: bool = False, **given: tuple[int, int]) -> None:
    """Store names that the batch of bucket `number` has given: offset and due time, by name.

    The rows are of use until then, or until `until_ms`.
    """
    rows = [
        {"name": hash_of(each), **dict(zip(("topic", "partition", "offset"), place(offset), strict=True)),
         "deliver_at_ms": due, "until_ms": max(due, until_ms), "keeps": keeps}
        for each, (offset, due) in given.items()
    ]  # fmt: skip
    store.append(name_rows(pa.Table.from_pylist(rows, NAMED_SCHEMA), number), "checkpoint", number)


def holders(decision: Decision) -> dict[str, int]:
    rows = zip(decision.names.column("name").to_pylist(), decision.names.column("offset").to_pylist(), strict=True)
    return {name_of(name): offset for name, offset in rows}


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


class Rows(StoredIds):
    """Stored rows of names: offset, due time, and until when each is of use, by name."""

    def __init__(self, **given: tuple[int, int, int]) -> None:
        self._given = {hash_of(name): row for name, row in given.items()}

    def moved_among(self, ids: Ids) -> Ids:
        """Return none: no request has made any of them due at once."""
        return NO_IDS

    def named_among(self, names: Iterable[bytes], from_ms: int) -> pa.Table:
        found = {name: self._given[name] for name in names if name in self._given and self._given[name][2] >= from_ms}
        rows = [(name, *place(offset), due, until, False) for name, (offset, due, until) in found.items()]
        return pa.Table.from_pylist(
            [dict(zip(NAMED_SCHEMA.names, row, strict=True)) for row in rows], schema=NAMED_SCHEMA
        )

    def keeping_among(self, ids: Ids) -> pa.Table:
        return NAMED_SCHEMA.empty_table()


def found(
    rows: Rows,
    *given: Given,
    of: BatchSpan | None = None,
    clock_ms: int = AFTER_OUTAGE_MS,
    left: Iterable[int] = (),
) -> LookedUp:
    """Look names up at a clock that is behind the cutoffs, of which an outage has kept the batches."""
    still = cancelled((*place(offset), 0, 0) for offset in left)
    return look_up(requests_for(*given), NO_IDS, rows, of or span(), clock_ms, lambda _: still)


def asked_in(names: LookedUp) -> dict[int, int]:
    """Return the offset of the message that each request is for, by the offset of its record; -1 for none."""
    return {request.id[2]: request.asked[2] for request in requests_of(names.requests)}


def names_in(names: LookedUp) -> dict[str, int]:
    rows = zip(names.names.column("name").to_pylist(), names.names.column("offset").to_pylist(), strict=True)
    return {name_of(name): offset for name, offset in rows}


def test_after_an_outage_what_is_overdue_and_waits_has_its_name() -> None:
    due_ms = PREVIOUS_MS + 5_000
    rows = Rows(a=(1, due_ms, due_ms), b=(2, due_ms, due_ms), c=(3, PREVIOUS_MS - 1, FAR_MS))
    names = found(rows, (50, "a", FAR_MS), (51, "b", None), (52, "c", None))
    assert asked_in(names) == {50: 1, 51: 2, 52: -1}, "the last one is handed over, and due"
    assert sorted(names.earlier.column("offset").to_pylist()) == [1, 2, 3]


def test_the_name_of_what_is_accepted_overdue_is_stored_unless_the_batch_hands_it_over() -> None:
    cutoff_ms = span().cutoff_ms
    names = found(Rows(), (50, "a", cutoff_ms), (51, "b", cutoff_ms - 1), (52, "c", FAR_MS))
    assert names_in(names) == {"a": 50, "c": 52}
    rows = Rows(b=(1, PREVIOUS_MS, cutoff_ms))
    assert names_in(found(rows, (51, "b", cutoff_ms - 1))) == {"b": 51}, "or it hides an older one"
    # While the job keeps up, its clock is before its cutoff.
    names = found(Rows(), (50, "a", CLOCK_MS), (51, "b", CLOCK_MS - 1), clock_ms=CLOCK_MS)
    assert names_in(names) == {"a": 50}


def test_the_first_batch_finds_by_name_what_an_earlier_checkpoint_has_left_overdue() -> None:
    rows = Rows(a=(1, 600, 600), b=(2, 700, 700))
    first = span(0, 0, first_bucket=8, cutoff_ms=2_000)
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", FAR_MS)]
    assert asked_in(found(rows, *given, of=first, left=[2])) == {50: -1, 51: 2}
    assert asked_in(found(rows, *given, left=[2])) == {50: -1, 51: -1}, "no later batch"


def test_what_an_outage_has_kept_is_cancelled_by_the_next_of_its_name(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000, _2=6_000)
    name(store, 4, a=(1, 5_000), b=(2, 6_000))
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", None), (52, "c", 7_000)]
    answers, decision = decide(store, *given, clock_ms=AFTER_OUTAGE_MS)
    assert answers == {51: {"id": "delayline-in/0/2", "result": "cancelled", "reason": "withdrawn"}}
    assert {each.id for each in each_of(decision.cancelled)} == {place(1), place(2)}
    assert holders(decision) == {"a": 50, "c": 52}


def test_the_first_batch_cancels_by_name_what_a_rebuild_has_left_overdue(store: MemoryTable) -> None:
    seal(store, 6, _1=500, _2=600)
    name(store, 7, a=(1, 500), b=(2, 600), c=(3, 600))
    seal(store, 8, _3=600)
    first = span(0, 0, first_bucket=9, cutoff_ms=2_000, offsets={TOPIC: {"0": READ}})
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", FAR_MS), (52, "c", FAR_MS)]
    answers, decision = decide(store, *given, of=first, clock_ms=AFTER_OUTAGE_MS)
    assert answers == {}, "what is handed over is asked for no more"
    assert {each.id for each in each_of(decision.cancelled)} == {place(3)}


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


def test_an_ask_for_what_is_handed_over_goes_on_with_the_messages_id(store: MemoryTable) -> None:
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
def test_of_a_replay_as_much_is_handed_over_whatever_was_answered_since(
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
    desk = RequestDesk(store, Settings(), forget_every_s=-1.0)
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


def test_a_name_is_free_once_its_message_is_delivered(store: MemoryTable) -> None:
    name(store, 4, a=(1, FAR_MS), b=(2, FAR_MS))
    name(store, 5, until_ms=FAR_MS, a=(3, CLOCK_MS - 1))
    answers, decision = decide(store, (50, "a", None), (51, "c", CLOCK_MS - 1))
    assert (answers[50]["id"], answers[50]["result"]) == (None, "unknown"), "the message before the newest is no more"
    assert holders(decision) == {}, "and of what is due at once no row is needed"
    _, decision = decide(store, (51, "b", CLOCK_MS - 1))
    assert holders(decision) == {"b": 51}, "unless the row of the message before would be found instead"


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


def test_a_batch_that_only_gives_names_cancels_nothing(store: MemoryTable) -> None:
    answers, decision = decide(store, (50, "a", FAR_MS))
    assert (answers, decision.cancelled.num_rows, decision.left_out) == ({}, 0, {})


def test_a_message_takes_no_name_over_from_a_message_with_its_own_id() -> None:
    # The known messages are from a deleted input topic. A message of the new topic must not be cancelled with them.
    known = {hash_of("a"): Holder(place(5), FAR_MS, FAR_MS), hash_of("b"): Holder(place(6), FAR_MS, FAR_MS)}
    found = in_turn(requests_for((5, "a", FAR_MS), (7, "b", FAR_MS)), known, PREVIOUS_MS, CLOCK_MS)
    assert [request.asked for request in requests_of(found.requests)] == [NOTHING, place(6)]
    assert found.names.column("offset").to_pylist() == [5, 7]


def dropped_for(found: LookedUp) -> dict[int, int]:
    """Return the offset of the message that keeps the name, by the offset of each dropped one."""
    return {request.id[2]: request.asked[2] for request in requests_of(found.dropped)}


def kept(names: pa.Table) -> dict[str, tuple[int, bool]]:
    """Return the rows of names that are stored: the offset of the message, and whether it keeps the name."""
    return {name_of(row["name"]): (row["offset"], row["keeps"]) for row in names.to_pylist()}


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
    assert bool(dropped_for(in_turn(requests, known, PREVIOUS_MS, CLOCK_MS))) == is_dropped


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
        assert decision.shows(PREVIOUS_MS), "the message that keeps its name may be handed over"
    kept_by = {"id": "delayline-in/0/1", "result": "kept", "reason": "name-kept", "why": Reason.NAME_KEPT.why}
    by_none = {"id": None, "result": "unknown", "reason": "no-such-name", "why": Reason.NO_SUCH_NAME.why}
    assert answers == {
        50: kept_by | {"replacement": "delayline-in/0/50", "accepted": False},
        51: kept_by | {"replacement": "delayline-in/0/51", "accepted": False},
        52: by_none | {"replacement": "delayline-in/0/52", "accepted": True},
    }
    keys = {row["offset"]: row["key"] for row in decision.answers.to_pylist()}
    assert keys == {50: b"delayline-in/0/1", 51: b"delayline-in/0/1", 52: None}, "the last one stays the name"


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


@pytest.mark.parametrize("by_name", [True, False])
def test_what_is_handed_over_and_was_asked_for_keeps_no_name_in_later_batches(
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
