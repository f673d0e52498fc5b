"""The decision about cancels: on a table in memory, and on the real one where that matters."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from sinks.buckets.bucket_table import BucketTable
from state.answers import Undecided
from state.buckets.cancelled import NEVER_MS, cancelled_rows
from state.buckets.operator import DUE, SEALED
from state.cancel import MessageId
from state.message import encode_chunk
from streaming.job.requests.decision import Decision
from streaming.job.requests.recalled import RecalledMessages
from tests.messages import messages
from tests.streaming.job.requests.desk_bench import (
    ASKED_SCHEMA,
    BATCH,
    CLOCK_MS,
    PREVIOUS_MS,
    READ,
    TOPIC,
    CancelledId,
    Table,
    asked_rows,
    each_of,
    output_of,
    seal,
    span,
)
from tests.streaming.job.requests.desk_requests import (
    FOUND_MS,
    OVERFLOW,
    answers_in,
    ask_row,
    asked_for,
    cancel,
    decide,
    desk_of,
    replace,
)
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.spark_table import SparkTable

pytestmark = pytest.mark.usefixtures("known_from", "markers", "recalled")


@pytest.fixture
def store(memory_table: MemoryTable) -> MemoryTable:
    """An empty table of sealed buckets."""
    return memory_table


def test_a_batch_without_asks_has_no_decision(store: Table) -> None:
    frame, rows = output_of(store, [{"kind": SEALED}])
    assert desk_of(store).decide(frame, rows, span(), CLOCK_MS) == Decision()


def test_what_the_state_stage_took_out_is_cancelled_and_kept_until_it_would_be_due(store: Table) -> None:
    results, cancelled = decide(store, 5, 5, found=[5])
    assert results == {5: "cancelled"}
    # A rebuild would accept it again otherwise, as long as its record is there.
    assert cancelled == [CancelledId((TOPIC, 0, 5), NEVER_MS, FOUND_MS)]


def test_a_sealed_message_is_cancelled_if_it_is_not_staged_before_this_batch(store: Table) -> None:
    # Slots of 16 ms and more: the index does not know whether 990 or 1,001 is below the cutoff before.
    seal(store, 3, _1=900, _2=990, _3=999, _4=1_000, _5=1_001, _6=1_499, _7=90_000)
    results, cancelled = decide(store, 1, 2, 3, 4, 5, 6, 7, 8)
    late, out = dict.fromkeys((1, 2, 3, 8), "undecided"), dict.fromkeys((4, 5, 6, 7), "cancelled")
    assert results == late | out
    dues = {4: 1_000, 5: 1_001, 6: 1_499, 7: 90_000}
    assert {each.id[2] for each in cancelled} == dues.keys()
    assert all(each.from_ms <= dues[each.id[2]] <= each.until_ms for each in cancelled)


def test_the_same_message_asked_for_twice_and_again_later_is_cancelled_each_time(store: Table) -> None:
    seal(store, 3, _1=5_000, _2=6_000)
    results, cancelled = decide(store, 1, 1, 2)
    assert set(results.values()) == {"cancelled"}
    assert len(cancelled) == 2
    cancel(store, BATCH, *cancelled)
    again, newly = decide(store, 1, of=span(BATCH + 1))
    assert (again, newly) == ({1: "cancelled"}, [])
    much_later, newly = decide(store, 1, of=span(BATCH + 50, previous_ms=50_000))
    assert (much_later, newly) == ({1: "cancelled"}, [])


def test_what_has_the_id_of_an_earlier_message_that_was_cancelled_is_looked_for(store: Table) -> None:
    seal(store, 3, _1=5_000, _2=6_000)
    cancel(store, 4, *(CancelledId((TOPIC, 0, each), due, due) for each, due in ((1, 5_000), (2, 6_000), (7, 900))))
    # The input topic was created again.
    seal(store, 5, _1=7_000)
    chunk = encode_chunk(messages([{"offset": 7, "deliver_at_ms": 70_000}]))
    results, cancelled = decide(store, 1, 2, 7, rows=[{"kind": SEALED, "segment": 1 << 20, "chunk": chunk}, *OVERFLOW])
    assert set(results.values()) == {"cancelled"}
    # The window loads by the same rule: tests/streaming/job/sealed/test_prefetch_window.py.
    assert {(each.id[2], each.until_ms) for each in cancelled} == {(1, 7_000), (7, 70_000)}


def test_a_replay_decides_the_same_although_its_decision_is_stored(store: Table) -> None:
    seal(store, 3, _1=5_000)
    first = decide(store, 1, 2, found=[2])
    cancel(store, BATCH, *first[1])
    assert decide(store, 1, 2, found=[2]) == first


def test_messages_that_the_job_has_not_read_or_does_not_read_are_unknown(store: Table) -> None:
    results, cancelled = decide(store, READ - 1, READ, 10**18, "other/0/1")
    assert results == {READ - 1: "undecided", READ: "unknown", 10**18: "unknown", "other/0/1": "unknown"}
    assert cancelled == []


def test_what_overflow_groups_seal_in_the_same_batch_is_cancelled(store: Table) -> None:
    chunk = encode_chunk(messages([{"offset": 7, "deliver_at_ms": 70_000}, {"offset": 8, "deliver_at_ms": 80_000}]))
    sealed = {"kind": SEALED, "segment": 1 << 20, "chunk": chunk}
    results, cancelled = decide(store, 8, 9, rows=[sealed, *OVERFLOW])
    assert results == {8: "cancelled", 9: "undecided"}
    assert cancelled == [CancelledId((TOPIC, 0, 8), 80_000, 80_000)]


def test_the_first_batch_of_a_checkpoint_cancels_what_the_one_before_has_left(store: Table) -> None:
    seal(store, 6, _1=500, _2=3_000)
    seal(store, 7, _3=600, _4=4_000)
    origin: dict[str, Any] = {"first_bucket": 8, "cutoff_ms": 2_000}
    results, cancelled = decide(store, 1, 2, 3, 4, of=span(0, 0, **origin))
    assert results == {1: "undecided", 2: "cancelled", 3: "cancelled", 4: "cancelled"}
    assert {each.id[2] for each in cancelled} == {2, 3, 4}


def test_a_replacement_is_accepted_with_the_cancel_or_refused_and_stored(store: Table) -> None:
    seal(store, 3, _1=5_000, _2=6_000)
    answers, decision = replace(
        store, (50, 1, "waiting"), (51, 1, "waiting"), (52, 8, "waiting"), (53, 8, "always"), (54, 5, "waiting"),
        (55, READ, "waiting"), found=[5],
    )  # fmt: skip
    assert answers == [
        ("cancelled", True),
        ("cancelled", False),
        ("unknown", False),
        # It may be recalled.
        ("undecided", True),
        ("cancelled", True),
        ("unknown", False),
    ]
    assert decision.left_out[TOPIC, 0].tolist() == [51, 52, 55]
    stored = {each.id[2]: each for each in each_of(decision.cancelled)}
    assert stored.keys() == {1, 5, 51, 52, 55}
    assert (stored[51].from_ms, stored[51].until_ms) == (70_000, 70_000)
    cancel(store, BATCH, *each_of(decision.cancelled))
    results, _ = decide(store, 51, 52, 1, of=span(BATCH + 1))
    assert set(results.values()) == {"cancelled"}, "what was refused never comes out"


def test_a_replacement_that_a_lost_batch_had_accepted_is_accepted_when_it_is_read_again(store: Table) -> None:
    seal(store, 3, _1=5_000, _2=6_000, _3=7_000)
    answers, decision = replace(store, (50, 1, "waiting"), (51, 2, "waiting"), (52, 2, "waiting"))
    assert [accepted for _, accepted in answers] == [True, True, False]
    assert decision.replaced == {(TOPIC, 0, 1): (TOPIC, 0, 50), (TOPIC, 0, 2): (TOPIC, 0, 51)}
    rows = cancelled_rows(decision.cancelled, BATCH, decision.replaced)
    store.append(rows, "checkpoint", BATCH)
    # The job is lost before it stages anything, and the first batch after a rebuild reads the same records.
    again = span(0, 0, first_bucket=BATCH + 1, cutoff_ms=PREVIOUS_MS)
    answers, decision = replace(store, (50, 1, "waiting"), (51, 2, "waiting"), (53, 2, "waiting"), of=again)
    assert answers == [("cancelled", True), ("cancelled", True), ("cancelled", False)]
    assert decision.left_out[TOPIC, 0].tolist() == [53]
    cancel(store, BATCH + 1, CancelledId((TOPIC, 0, 3), 7_000, 7_000))
    (answer,), _ = replace(store, (54, 3, "waiting"), of=span(1, first_bucket=BATCH + 1))
    assert answer == ("cancelled", False), "a cancel has taken it out, and no replacement"


def test_a_refused_replacement_that_is_asked_for_in_the_same_batch_is_no_message(store: Table) -> None:
    chunk = encode_chunk(messages([{"offset": 50, "deliver_at_ms": 70_000}]))
    overflow = {"kind": SEALED, "segment": 1 << 20, "chunk": chunk}
    cases: list[tuple[list[dict[str, Any]], list[int]]] = [([overflow, *OVERFLOW], []), ([], [50]), ([], [])]
    for rows, found in cases:
        answers, decision = replace(store, (50, 8, "waiting"), (51, 50, "waiting"), found=found, rows=rows)
        assert answers == [("unknown", False), ("cancelled", False)]
        assert {each.id[2] for each in each_of(decision.cancelled)} == {50, 51}


def test_what_overflow_groups_stage_in_the_same_batch_is_cancelled_and_left_out(store: Table) -> None:
    rows: list[dict[str, Any]] = [
        {"offset": 7, "deliver_at_ms": 900},
        {"offset": 8, "deliver_at_ms": 900, "error_code": "bad", "output_topic": "delayline-dead-letter"},
    ]
    due = {"kind": DUE, "chunk": encode_chunk(messages(rows))}
    results, cancelled = decide(store, 7, 8, rows=[due, *OVERFLOW])
    assert results == {7: "cancelled", 8: "undecided"}
    assert cancelled == [CancelledId((TOPIC, 0, 7), 900, 900)]
    results, cancelled = decide(store, 7, rows=[due])
    assert (results, cancelled) == ({7: "undecided"}, []), "without overflow groups, the state stage takes it out"


def test_what_release_processes_have_recalled_is_known(store: Table, recalled: list[MessageId]) -> None:
    recalled += [(TOPIC, 0, 5), (TOPIC, 0, 6)]
    results, cancelled = decide(store, 5, 7)
    assert (results, cancelled) == ({5: "cancelled", 7: "undecided"}, [])
    recalled.append((TOPIC, 0, 9))
    answers, _ = replace(store, (50, 9, "waiting"), (51, 9, "always"))
    assert answers == [("cancelled", False), ("cancelled", True)]


@pytest.mark.parametrize("knows_all", [True, False])
def test_no_message_is_called_delivered_while_an_answer_about_it_may_be_unread(
    store: Table, recalled: list[MessageId], monkeypatch: pytest.MonkeyPatch, knows_all: bool
) -> None:
    assert recalled == []
    monkeypatch.setattr(RecalledMessages, "knows_all", knows_all)
    request = ask_row((TOPIC, 0, 5), ("asks", 1, 0))
    frame, rows = output_of(store, asked_rows(pa.Table.from_pylist([request], schema=ASKED_SCHEMA)))
    decision = desk_of(store).decide(frame, rows, span(), CLOCK_MS)
    (value,) = decision.answers.column("value").to_pylist()
    # For the release processes, a request of 1970 is older than they are: they answer it with `unknown` at the worst.
    assert (Undecided.from_bytes(value).asked_ms > 0) == knows_all


def test_what_is_old_is_forgotten_each_minute_beside_a_batch(store: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(RecalledMessages, "forget", lambda _, *instants: told.append(instants))
    desk, now_s = desk_of(store), time.monotonic()
    frame, rows = asked_for(store, 5)
    for number, after_s, count in ((1, 0, 1), (2, 59, 1), (3, 61, 2), (4, 122, 3)):
        monkeypatch.setattr("streaming.job.requests.desk.time.monotonic", lambda after_s=after_s: now_s + after_s)
        desk.stored(Decision(), span(BATCH + number), CLOCK_MS)
        # A batch with requests waits until the decision is noted.
        assert not desk.decide(frame, rows, span(BATCH + number + 1), CLOCK_MS).cancelled.num_rows
        # The clock may go back by a minute.
        assert told == [(PREVIOUS_MS, CLOCK_MS - 60_000)] * count
    desk.close()


def test_ids_are_read_ahead_beside_the_batches_before_the_first_request(
    spark_table: SparkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(spark_table, 3, _1=5_000)
    cancel(spark_table, 4, CancelledId((TOPIC, 0, 2), 5_000, 5_000))
    may_read = threading.Event()
    read = BucketTable.ids_before

    def slowly(*arguments: Any) -> Any:
        assert may_read.wait(60)
        return read(*arguments)

    monkeypatch.setattr(BucketTable, "ids_before", slowly)
    desk = desk_of(spark_table)
    desk.read_ahead(span().bucket, span().origin)
    desk.stored(Decision(), span(), CLOCK_MS)
    # A batch without requests does not wait for it.
    desk.before_batch()
    desk.stored(desk.decide(*output_of(spark_table, []), span(BATCH + 1), CLOCK_MS), span(BATCH + 1), CLOCK_MS)
    desk.before_batch()
    may_read.set()
    frame, rows = asked_for(spark_table, 1, 2, 3)
    # All of it was read by then.
    with monkeypatch.context() as patch:
        desk._wait_for([*desk._running])
        patch.setattr(BucketTable, "ids_before", None)
        patch.setattr(BucketTable, "index_entries_of", None)
        answers = answers_in(desk.decide(frame, rows, span(BATCH + 2), CLOCK_MS))
    assert [answers["asks", 1, at]["result"] for at in (1, 2, 3)] == ["cancelled", "cancelled", "undecided"]
    desk.close()
