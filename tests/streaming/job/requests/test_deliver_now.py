"""Deliver-now requests for messages in a table of sealed buckets: the decisions and the moved messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from conf.settings import Settings
from state.buckets.cancelled import cancelled_rows
from state.buckets.operator import ASKED, DUE
from state.cancel import NOTHING, REQUEST_SCHEMA, Successor
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.kinds import ANSWER, DEAD_LETTER, DUE_NOW, REPEATING
from state.message import decode_chunk, encode_chunk
from state.names import HASH_BYTES, KEEP, NAMED_SCHEMA, name_rows
from state.repeats.rule import Rule
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER, Schedule
from state.repeats.waiting import Predecessor
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.moved_rows import check_moved, with_moves
from streaming.job.requests.recalled import RecalledMessages
from tests.messages import cancelled, headers, some_batch_settings
from tests.streaming.job.requests.desk_bench import Table, output_of
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.spark_table import SparkTable
from tests.streaming.sealed import sealed_table

BATCH_SETTINGS = some_batch_settings(segment_max_messages=4, index_precision_bits=4)
TOPIC, CLOCK_MS, PREVIOUS_MS, CUTOFF_MS = "delayline-in", 400, 1_000, 1_500
# The bucket that a rebuild has sealed, and the bucket of the first batch.
OVERDUE, FIRST = 4, 5


@pytest.fixture
def store(memory_table: MemoryTable) -> MemoryTable:
    """An empty table of sealed buckets."""
    return memory_table


@pytest.fixture(autouse=True)
def nothing_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecalledMessages, "known_from", {(TOPIC, 0): 0})
    monkeypatch.setattr(RecalledMessages, "read", lambda *_: None)
    monkeypatch.setattr(RecalledMessages, "only", lambda *_: {})


def span(batch_id: int, previous_ms: int = PREVIOUS_MS) -> BatchSpan:
    origin = CheckpointOrigin("c", 2, 2, first_bucket=FIRST, cutoff_ms=PREVIOUS_MS)
    ends = {TOPIC: {"0": 60}}
    return BatchSpan(origin, batch_id, previous_ms, CUTOFF_MS, ends, ends)


def seal(store: Table, number: int, *rows: tuple[int, int] | tuple[int, int, int]) -> None:
    """Seal messages as bucket `number`: the offset, the due time, and the kind of each."""
    keys = ("offset", "deliver_at_ms", "kind")
    seal_rows(store, number, [dict(zip(keys, row, strict=False)) for row in rows])


def seal_rows(store: Table, number: int, rows: Sequence[dict[str, Any]]) -> None:
    store.append(sealed_table(number, rows, BATCH_SETTINGS), "checkpoint", number)


def store_ids(store: Table, number: int, offset: int, due_ms: int, successor: Successor | None = None) -> None:
    """Store that the batch of bucket `number` has cancelled a message; or moved it, if it has a new due time."""
    table = cancelled([(TOPIC, 0, offset, due_ms, due_ms)])
    rows = cancelled_rows(table, number, {} if successor is None else {(TOPIC, 0, offset): successor})
    store.append(rows, "checkpoint", number)


def asked(store: Table, requests: Sequence[dict[str, Any]]) -> tuple[Any, list[Any]]:
    """Return the output of the state stage for `requests` (`REQUEST_SCHEMA`), and the rows that the driver reads."""
    chunk = encode_chunk(pa.Table.from_pylist(requests, schema=REQUEST_SCHEMA))
    return output_of(store, [{"kind": ASKED, "chunk": chunk}])


def desk_of(store: Any) -> RequestDesk:
    return RequestDesk(store, Settings())


def decide(
    store: Table, batch_id: int, delivers: Sequence[int], cancels: Sequence[int] = (), may_repeat: bool = False
) -> tuple[dict[int, str], list[tuple[int, int, int]]]:
    """Return the reason for each offset, and offset, due time and kind of the moved messages. Cancels come last."""
    requests = [
        dict(zip(REQUEST_SCHEMA.names[:6], (TOPIC, 0, offset, "asks", 1, at), strict=True))
        | {"delivers": at < len(delivers)}
        for at, offset in enumerate([*delivers, *cancels])
    ]
    frame, before = asked(store, requests)
    desk, of = desk_of(store), span(batch_id)
    decision = desk.decide(frame, before, of, CLOCK_MS, may_repeat=may_repeat)
    moved: list[tuple[int, int, int]] = []
    if decision.moves.num_rows:
        stored = decision.places
        table: Any = store
        after: Any = with_moves(frame, table, stored, decision.moves, of, BATCH_SETTINGS)
        check_moved(before, store.driver_rows(after), stored)
        chunks = [decode_chunk(bytes(each["chunk"])) for each in after.collect() if each["kind"] == DUE]
        moved = [
            (each["offset"], each["deliver_at_ms"], each["kind"]) for chunk in chunks for each in chunk.to_pylist()
        ]
    desk.close()
    answers: dict[int, str] = {}
    for answer in decision.answers.to_pylist():
        content: dict[str, Any] = json.loads(answer["value"]) if answer["kind"] == ANSWER else {"reason": "undecided"}
        answers[[*delivers, *cancels][answer["offset"]]] = content["reason"]
    return answers, sorted(moved)


def test_what_a_rebuild_has_sealed_comes_out_now_but_no_dead_letter_or_answer_of_the_same_id(
    store: Table,
) -> None:
    # A replacement, and the answer to its request, have one id.
    seal(store, OVERDUE, (1, 300, DEAD_LETTER), (2, 500), (2, 510, ANSWER), (3, 600), (4, 90_000), (5, 700, ANSWER))
    answers, moved = decide(store, 0, [1, 2, 3, 4, 5])
    assert answers == {1: "undecided", 2: "made-due", 3: "made-due", 4: "made-due", 5: "undecided"}
    assert moved == [(2, 401, DUE_NOW), (3, 401, DUE_NOW), (4, 401, DUE_NOW)]


def test_what_a_lost_batch_has_made_due_comes_out_with_the_first_batch_whoever_asks_again(store: Table) -> None:
    seal(store, 2, (1, 90_000), (2, 90_000))
    store_ids(store, 3, 1, 90_000, CLOCK_MS - 100)
    seal(store, OVERDUE, (1, CLOCK_MS - 100, DUE_NOW))
    assert decide(store, 0, [2], cancels=[1]) == ({1: "released", 2: "made-due"}, [(2, 401, DUE_NOW)])
    assert decide(store, 0, [1]) == ({1: "made-due"}, [])
    # It is staged by then.
    assert decide(store, 1, [1]) == ({1: "made-due"}, [])
    assert decide(store, 1, [], cancels=[1]) == ({1: "released"}, [])


@pytest.mark.parametrize("batch_id", [0, 1])
def test_of_a_topic_that_was_made_anew_a_rescale_leaves_another_message_than_the_one_that_was_made_due(
    store: Table, batch_id: int
) -> None:
    seal(store, 1, (1, 90_000), (2, 90_000))
    for offset in (1, 2):
        store_ids(store, 1 + offset, offset, 90_000, CLOCK_MS - 100)
    # Messages that were in the state have the number of the bucket before the first, and the kind of a message.
    seal(store, OVERDUE, (1, 95_000), (2, 96_000))
    answers, moved = decide(store, batch_id, [1], cancels=[2])
    assert answers == {1: "made-due", 2: "withdrawn"}
    assert moved == [(1, 401, DUE_NOW)]


def test_of_a_topic_that_was_made_anew_the_message_that_waits_comes_out_and_the_batch_goes_on(
    store: Table,
) -> None:
    seal(store, 5, (1, 5_000), (2, 6_000))
    store_ids(store, 6, 1, 5_000)
    seal(store, 7, (1, 7_000), (3, 8_000), (3, 9_000))
    answers, moved = decide(store, 9, [1, 3])
    assert answers == {1: "made-due", 3: "made-due"}
    # Two messages that wait have one id: both are made due.
    assert moved == [(1, 401, DUE_NOW), (3, 401, DUE_NOW), (3, 401, DUE_NOW)]


def test_no_chunk_is_read_between_those_that_have_the_messages(spark_table: SparkTable) -> None:
    seal(spark_table, 5, *((at, 5_000 + 1_000 * at) for at in range(20)))
    version = spark_table.version()
    places = spark_table.locate({(TOPIC, 0): pa.array([1, 17]).to_numpy()}, 9, 0, version)
    chunks = spark_table.chunks_at(places, version).collect()
    assert sorted(row["deliver_at_ms"] for row in chunks) == [5_000, 21_000]
    # No other chunk has one of them.
    offsets = [decode_chunk(bytes(row["chunk"])).column("offset").to_pylist() for row in chunks]
    assert sorted(offsets) == [[0, 1, 2, 3], [16, 17, 18, 19]]


def test_a_request_for_another_message_than_one_that_repeats_reads_no_chunk(
    store: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(store, 2, (1, 90_000), (2, 90_000))
    seal_schedule(store)
    read: list[int] = []
    from_table = store.chunks_at

    def chunks_at(places: pa.Table, version: int) -> Any:
        read.extend(places.column("offset").to_pylist())
        return from_table(places, version)

    monkeypatch.setattr(store, "chunks_at", chunks_at)
    assert decide(store, 9, [], cancels=[1], may_repeat=True)[0] == {1: "withdrawn"}
    assert not read
    assert decide(store, 9, [3], cancels=[2], may_repeat=True)[0] == {2: "withdrawn", 3: "repeats"}
    assert read == [3]


def test_messages_that_repeat_in_the_place_of_another_know_what_waited_of_that(store: Table) -> None:
    seal(store, 2, (1, 90_000))
    seal_schedule(store)
    terms = {"condition": "always", "deliver_at_ms": 80_000, "delivers": False}
    pairs = [(20, 3, True), (21, 20, True), (22, 3, False), (23, 1, True)]
    requests = [
        dict(zip(REQUEST_SCHEMA.names[:6], (TOPIC, 0, old, TOPIC, 0, own), strict=True)) | terms | {"repeats": repeats}
        for own, old, repeats in pairs
    ]
    frame, rows = asked(store, requests)
    desk = desk_of(store)
    decision = desk.decide(frame, rows, span(9), CLOCK_MS, may_repeat=True)
    desk.close()
    before = Predecessor(41, 90_000, Rule(interval_ms=10_000))
    assert decision.predecessors == {(TOPIC, 0, 20): before, (TOPIC, 0, 21): before}


def test_an_overdue_message_that_repeats_keeps_its_name_in_the_first_batch_despite_a_deliver_now_request(
    store: Table,
) -> None:
    name, due_ms = b"n" * HASH_BYTES, CLOCK_MS - 100
    holder = dict(zip(NAMED_SCHEMA.names, (name, TOPIC, 0, 3, due_ms, due_ms, True), strict=True))
    names = name_rows(pa.Table.from_pylist([holder], NAMED_SCHEMA), OVERDUE - 1)
    store.append(names, "checkpoint", OVERDUE - 1)
    seal_schedule(store, OVERDUE, due_ms)
    at_once = dict(zip(REQUEST_SCHEMA.names[:6], (TOPIC, 0, 3, "asks", 1, 0), strict=True)) | {"delivers": True}
    kept = dict(zip(REQUEST_SCHEMA.names, (*NOTHING, TOPIC, 0, 50, KEEP, 80_000, name, 0, *[False] * 3), strict=True))
    frame, rows = asked(store, [at_once, kept])
    desk, first = desk_of(store), span(0)
    # The rebuild has read the records before.
    first = replace(first, origin=replace(first.origin, offsets=first.starts))
    decision = desk.decide(frame, rows, first, CLOCK_MS, may_repeat=True)
    desk.close()
    assert decision.left_out[TOPIC, 0].tolist() == [50]
    assert (decision.drops, decision.moves.num_rows, decision.names.num_rows) == (True, 0, 0)


def seal_schedule(store: Table, number: int = 3, due_ms: int = 90_000) -> None:
    """Seal a message that repeats, of the offset 3, as bucket `number`."""
    own = headers((SCHEDULE_HEADER, Schedule(Rule(interval_ms=10_000)).to_bytes()), (NUMBER_HEADER, b"41"))
    row = {"offset": 3, "deliver_at_ms": due_ms, "kind": REPEATING, "headers": own}
    seal_rows(store, number, [row])
