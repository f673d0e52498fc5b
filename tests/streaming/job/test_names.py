"""Looking names up, and what a batch decides about them, on a real table of sealed buckets."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.settings import Settings
from sinks.bucket_table import BucketTable
from state.buckets.cancelled import cancelled_rows
from state.buckets.operator import ASKED, ASKED_SCHEMA
from state.buckets.parts import IdRows
from state.cancel import ALWAYS, ASK_SCHEMA, NOTHING, MessageId, Undecided, asks_of
from state.checkpoint.progress import BatchSpan
from state.message import encode_chunk
from state.names import NAMED_SCHEMA, name_rows
from streaming.job.cancels import CancelDesk, Decision
from streaming.job.names import Holder, in_turn
from streaming.job.stored_ids import StoredIds
from tests.streaming.job.test_cancels import (
    BATCH,
    CLOCK_MS,
    PREVIOUS_MS,
    READ,
    TOPIC,
    bounds,
    each_of,
    output_of,
    recalled,
    seal,
    span,
)

__all__ = ["bounds", "recalled"]

# Due far after the cutoff, unless a test says otherwise.
FAR_MS = 70_000
# An ask by a name: the offset of its record, the name, and when its message is due; None: it is a cancel.
Given = tuple[int, str, int | None]


def asks_for(*given: Given) -> pa.Table:
    rows = [
        (*NOTHING, TOPIC, 0, offset, None if due is None else ALWAYS, due, name.encode()) for offset, name, due in given
    ]
    return pa.Table.from_pylist([dict(zip(ASK_SCHEMA.names, row, strict=True)) for row in rows], schema=ASK_SCHEMA)


def place(offset: int) -> MessageId:
    return TOPIC, 0, offset


def decide(store: BucketTable, *given: Given, of: BatchSpan | None = None) -> tuple[dict[int, Any], Decision]:
    """Return the answer to each ask that gets one, and the decision. An ask that goes on has its new key."""
    asked = asks_for(*given)
    chunk = encode_chunk(asked.append_column(ASKED_SCHEMA.field("found"), pa.repeat(pa.scalar(False), asked.num_rows)))
    frame, rows = output_of(store, [{"kind": ASKED, "chunk": chunk}])
    decision = CancelDesk(store, Settings()).decide(frame, rows, of or span(), CLOCK_MS)
    answers: dict[int, Any] = {}
    for answer in decision.answers.to_pylist():
        value, key = answer["value"], answer["key"]
        if value is not None:
            is_open = value[:1] == b"["
            answers[answer["offset"]] = ("goes on", key.decode()) if is_open else json.loads(value)
            if is_open:
                assert Undecided.from_bytes(value).due_before_ms == PREVIOUS_MS + 500
    assert {answer["offset"] for answer in decision.answers.to_pylist()} == {offset for offset, _, _ in given}
    return answers, decision


def store_of(store: BucketTable, number: int, decision: Decision) -> None:
    """Store what the batch of bucket `number` has decided."""
    tables = [cancelled_rows(decision.cancelled, number), name_rows(decision.names, number)]
    store.append(store.spark.createDataFrame(pa.concat_tables(tables)), "checkpoint", number)


def name(store: BucketTable, number: int, until_ms: int = 0, **given: tuple[int, int]) -> None:
    """Store names that the batch of bucket `number` has given: offset and due time, by name.

    The rows are of use until then, or until `until_ms`.
    """
    rows = [
        {"name": each.encode(), **dict(zip(("topic", "partition", "offset"), place(offset), strict=True)),
         "deliver_at_ms": due, "until_ms": max(due, until_ms)}
        for each, (offset, due) in given.items()
    ]  # fmt: skip
    store.append(
        store.spark.createDataFrame(name_rows(pa.Table.from_pylist(rows, NAMED_SCHEMA), number)), "checkpoint", number
    )


def holders(decision: Decision) -> dict[str, int]:
    rows = zip(decision.names.column("name").to_pylist(), decision.names.column("offset").to_pylist(), strict=True)
    return {name.decode(): offset for name, offset in rows}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)),
    st.randoms(),
)
def test_names_are_given_and_taken_over_as_in_the_model(
    steps: list[tuple[str, int | None]], before: dict[str, int], random: Any
) -> None:
    given: list[Given] = [(10 + at, name, due) for at, (name, due) in enumerate(steps)]
    # A cancel leaves the name to the message that it cancels: whoever asks again gets the same answer.
    holds: dict[str, int | None] = dict(before)
    cancelled: set[int] = set()
    asked, superseded = {}, set()
    for offset, name, due in given:
        asked[offset] = holds.get(name)
        if (old := holds.get(name)) is not None:
            cancelled.add(old)
            if old >= 10:
                superseded.add(old)
        if due is not None:
            holds[name] = offset
    shuffled = list(given)
    random.shuffle(shuffled)
    known = {name.encode(): Holder(place(offset), FAR_MS, FAR_MS) for name, offset in before.items()}
    found = in_turn(asks_for(*shuffled), known, PREVIOUS_MS, 0)
    expected = {offset: NOTHING if old is None else place(old) for offset, old in asked.items()}
    assert {ask.id[2]: ask.asked for ask in asks_of(found.asks)} == expected
    assert set(found.superseded.column("offset").to_pylist()) == superseded
    left = {name: offset for name, offset in holds.items() if offset is not None and offset >= 10}
    left = {name: offset for name, offset in left.items() if offset not in cancelled}
    rows = zip(found.names.column("name").to_pylist(), found.names.column("offset").to_pylist(), strict=True)
    assert {name.decode(): offset for name, offset in rows} == left


def test_what_waits_under_the_name_is_cancelled_and_nobody_gets_an_answer(store: BucketTable) -> None:
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


def test_a_replay_decides_the_same(store: BucketTable) -> None:
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


def test_of_one_batch_only_the_last_message_of_a_name_comes_out(store: BucketTable) -> None:
    _, decision = decide(store, (50, "a", FAR_MS), (51, "a", 5), (52, "a", FAR_MS))
    assert {each.id[2]: each.from_ms for each in each_of(decision.cancelled)} == {50: FAR_MS, 51: 5}
    assert decision.left_out[TOPIC, 0].tolist() == [50, 51]
    assert holders(decision) == {"a": 52}


def test_an_ask_for_what_is_handed_over_goes_on_with_the_messages_id(store: BucketTable) -> None:
    # Between the batch's clock and the cutoff before it.
    name(store, 4, a=(1, 900), b=(2, 900))
    answers, decision = decide(store, (50, "a", FAR_MS), (51, "b", None))
    assert answers == {50: ("goes on", "delayline-in/0/1"), 51: ("goes on", "delayline-in/0/2")}
    assert holders(decision) == {"a": 50}
    assert each_of(decision.cancelled) == []


def test_a_name_whose_message_was_cancelled_and_forgotten_is_no_ask_for_the_release(store: BucketTable) -> None:
    # Due after the cutoff before, and in no bucket: it was cancelled, and its input record is deleted since.
    name(store, 4, a=(1, FAR_MS), b=(2, FAR_MS))
    answers, _ = decide(store, (50, "a", FAR_MS), (51, "b", None))
    assert answers == {51: {"id": "delayline-in/0/2", "result": "cancelled"}}


def test_what_a_lost_batch_has_stored_of_records_that_are_read_again_does_not_count(store: BucketTable) -> None:
    seal(store, 3, _1=5_000)
    name(store, 4, a=(1, 5_000))
    name(store, 5, a=(READ, FAR_MS))
    again = span(ends={TOPIC: {"0": READ + 1}})
    answers, decision = decide(store, (READ, "a", FAR_MS), of=again)
    assert answers == {}
    assert {each.id for each in each_of(decision.cancelled)} == {place(1)}
    assert holders(decision) == {"a": READ}


@pytest.mark.parametrize("has_answered", [False, True])
def test_of_a_replay_as_many_asks_go_on_whatever_was_answered_since(
    store: BucketTable, recalled: list[MessageId], has_answered: bool
) -> None:
    name(store, 4, a=(1, 900))
    recalled += [place(1)] if has_answered else []
    assert decide(store, (50, "a", FAR_MS))[0] == {50: ("goes on", "delayline-in/0/1")}


def test_a_name_is_free_once_its_message_is_delivered(store: BucketTable) -> None:
    name(store, 4, a=(1, FAR_MS), b=(2, FAR_MS))
    name(store, 5, until_ms=FAR_MS, a=(3, CLOCK_MS - 1))
    answers, decision = decide(store, (50, "a", None), (51, "c", CLOCK_MS - 1))
    assert (answers[50]["id"], answers[50]["result"]) == (None, "unknown"), "the message before the newest is no more"
    assert holders(decision) == {}, "and of what is due at once no row is needed"
    _, decision = decide(store, (51, "b", CLOCK_MS - 1))
    assert holders(decision) == {"b": 51}, "unless the row of the message before would be found instead"


def test_joined_names_are_found_as_before_and_forgotten_with_the_oldest(store: BucketTable) -> None:
    name(store, 2, a=(1, FAR_MS), b=(2, FAR_MS), c=(3, 100))
    name(store, 3, a=(4, FAR_MS + 1))
    name(store, 4, until_ms=FAR_MS + 1, a=(5, 200), d=(6, FAR_MS))
    every = [each.encode() for each in "abcd"]

    def found(before: int = BATCH) -> dict[str, int]:
        stored = StoredIds(store)
        stored.open(before, {TOPIC: {"0": READ}})
        table = stored.named_among(every, 1_000)
        pairs = zip(table.column("name").to_pylist(), table.column("offset").to_pylist(), strict=True)
        # Of several rows, the last one counts.
        return {name.decode(): offset for name, offset in pairs}

    # The message of `a` is delivered, and its row hides that of the one before.
    assert (found(), found(4)) == ({"a": 5, "b": 2, "d": 6}, {"a": 4, "b": 2})
    store.join_ids(IdRows.NAMED, [3, 4], "max_deliver_at_ms < 1000")
    assert store.id_partitions(IdRows.NAMED).keys() == {2, 4}
    assert found() == {"a": 5, "b": 2, "d": 6}
    store.join_ids(IdRows.NAMED, [2, 4], "max_deliver_at_ms < 1000")
    assert found() == {"a": 5, "b": 2, "d": 6}
    assert store.rows().count() == 3
    assert store.id_partitions(IdRows.NAMED).keys() == {4}
    assert store.metadata() == [], "they are no segments"
    assert store.cancelled_ids() == {}


def test_a_batch_that_only_gives_names_cancels_nothing(store: BucketTable) -> None:
    answers, decision = decide(store, (50, "a", FAR_MS))
    assert (answers, decision.cancelled.num_rows, decision.left_out) == ({}, 0, {})
