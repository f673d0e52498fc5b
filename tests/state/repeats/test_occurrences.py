from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count, islice, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.intake.accept import accept
from state.buckets.operator import BOUND, DUE, NAMED, SEALED
from state.buckets.parts import following_part
from state.cancel import MessageId
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan
from state.kinds import OCCURRENCE, REPEATING, is_delivered, is_message, repeats
from state.message import decode_chunk, empty_messages
from state.message_ids import ID
from state.names import named
from state.order import OrderKey
from state.repeats import occurrences
from state.repeats.left import left_of_staged
from state.repeats.occurrences import OccurrenceRows, as_waiting
from state.repeats.rule import parse_rule
from state.repeats.schedule import ALL, MISSED, Occurrence
from state.repeats.waiting import NO_PREDECESSORS, Predecessor, waiting_in
from tests.messages import PARTITIONS, CountedTable, headers, records, some_batch_settings

MINUTE = 60_000
START_MS = 1_798_000_000_000
BUCKET, SHARD = 7, 0
SETTINGS = some_batch_settings(
    policy=DelayPolicy(repeats=True, names="header"), partitions=PARTITIONS | {"delayline-results": 1}
)


def accepted(*rows: tuple[tuple[str, bytes], ...]) -> pa.Table:
    """Return the messages of records with these headers, of consecutive offsets."""
    table = records(
        {"timestamp_ms": START_MS, "offset": at, "headers": headers(*pairs)} for at, pairs in enumerate(rows)
    )
    messages = accept(table, SETTINGS, START_MS).messages
    return messages.slice(0, len(rows))


def span_of(clock_ms: int, cutoff_ms: int, previous_ms: int = 0) -> BatchSpan:
    """Return a batch with this clock and these cutoffs after the start, and a horizon of a minute."""
    span = BatchSpan(CheckpointOrigin("c", 1, 1), BUCKET, 0, START_MS + cutoff_ms, clock_ms=START_MS + clock_ms)
    return replace(span, missed_before_ms=span.clock_ms - MINUTE, previous_ms=START_MS + previous_ms)


def made(
    messages: pa.Table,
    clock_ms: int,
    cutoff_ms: int,
    settings: BatchSettings = SETTINGS,
    cut: int = 1,
    predecessors: Mapping[MessageId, Predecessor] = NO_PREDECESSORS,
    previous_ms: int = 0,
    **limits: Any,
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a batch by kind. It reads the first `cut` messages before the others."""
    rows = OccurrenceRows(settings, span_of(clock_ms, cutoff_ms, previous_ms), SHARD, predecessors, **limits)
    found: dict[str, list[dict[str, Any]]] = {DUE: [], SEALED: [], NAMED: [], BOUND: []}
    messages = messages.filter(pa.array(repeats(messages)))
    pieces = [messages.slice(0, cut), messages.slice(cut)]
    for piece in pieces:
        rows.add(piece)
    for batch in (*chain.from_iterable(map(rows.staged, pieces)), *rows.finish()):
        for row in batch.to_pylist():
            found[row["kind"]].append(row)
    return found


def contents(rows: list[dict[str, Any]]) -> list[tuple[int, int, bytes, int]]:
    """Return offset, minute, number and kind of each message."""
    return [
        (each["offset"], (each["deliver_at_ms"] - START_MS) // MINUTE, each["headers"][-1]["value"], each["kind"])
        for row in rows
        for each in decode_chunk(row["chunk"]).to_pylist()
    ]


def test_batch_hands_over_what_is_below_its_cutoff_and_seals_what_follows() -> None:
    messages = accepted(
        (("delayline-repeat", b"every 10m"), ("x", b"1")),
        (("x", b"2"),),
        (("delayline-repeat", b"every 30m"), ("delayline-repeat-count", b"1")),
    )
    rows = made(messages, 0, 35 * MINUTE)
    expected = [(0, 10, b"1"), (0, 20, b"2"), (0, 30, b"3"), (2, 30, b"1")]
    assert contents(rows[DUE]) == [(*each, OCCURRENCE) for each in expected]
    assert contents(rows[SEALED]) == [(0, 40, b"4", REPEATING)]
    (segment,) = rows[SEALED]
    assert (segment["part"], segment["repeats"], segment["count"]) == (following_part(BUCKET), 1, 1)
    delivered = decode_chunk(rows[DUE][0]["chunk"])
    assert delivered.column("headers").to_pylist()[0] == headers(("x", b"1"), ("delayline-occurrence", b"1"))
    # Several have one id: a release process must not take one out for another.
    assert is_delivered(delivered).all()
    assert not is_message(delivered).any()
    assert not repeats(delivered).any()


def test_instants_that_are_staged_of_the_message_before_are_left_out() -> None:
    """By the same expression. An interval has other instants, as it begins at its own message."""
    often, oftener, every = (("delayline-repeat", each) for each in (b"*/10 * * * *", b"*/5 * * * *", b"every 10m"))
    messages = accepted((often,), (oftener,), (every,), (often, until(20)), (often, until(4)))
    # 04:26:40; the one of 04:30 is staged.
    rules = [parse_rule("*/10 * * * *")] * 5
    rules[2] = parse_rule("every 10m")
    at_ms = START_MS + 800_000
    before = {("delayline-in", 0, offset): Predecessor(7, at_ms, rule) for offset, rule in enumerate(rules)}
    rows = made(messages, 0, 12 * MINUTE, predecessors=before, previous_ms=4 * MINUTE)
    assert [each[:3] for each in contents(rows[DUE])] == [(1, 3, b"1"), (4, 3, b"1"), (1, 8, b"2"), (2, 10, b"1")]
    waits = [(0, 13, b"1"), (1, 13, b"3"), (3, 13, b"1"), (2, 20, b"2")]
    assert [each[:3] for each in contents(rows[SEALED])] == waits


def test_a_schedule_begins_at_once_if_the_one_before_begins_later() -> None:
    messages = accepted((("delayline-repeat", b"*/10 * * * *"),))
    rule = parse_rule("*/10 * * * *")
    before = {("delayline-in", 0, 0): Predecessor(1, START_MS + 24 * 60 * MINUTE, rule)}
    rows = made(messages, 0, 12 * MINUTE, predecessors=before)
    assert [each[:3] for each in contents(rows[DUE])] == [(0, 3, b"1")]


def until(minutes: int) -> tuple[str, bytes]:
    return "delayline-repeat-until", b"%d" % (START_MS + minutes * MINUTE)


def test_name_is_that_of_the_occurrence_that_waits() -> None:
    rows = made(accepted((("delayline-repeat", b"every 10m"), ("delayline-name", b"n"))), 0, 15 * MINUTE)
    (names,) = (decode_chunk(row["chunk"]).to_pylist() for row in rows[NAMED])
    due_ms = START_MS + 20 * MINUTE
    assert names == [
        {
            "name": named("delayline-in", b"n"), "topic": "delayline-in", "partition": 0, "offset": 0,
            "deliver_at_ms": due_ms, "until_ms": due_ms, "keeps": False,
        }
    ]  # fmt: skip


def test_segments_of_occurrences_have_numbers_of_their_own() -> None:
    messages = accepted(*[(("delayline-repeat", b"every 10m"),)] * 5)
    rows = made(messages, 0, 15 * MINUTE, some_batch_settings(segment_max_messages=2))
    numbers = [row["segment"] for row in rows[SEALED]]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert numbers[0] >= 3 << 18


def test_bytes_of_occurrences_that_wait_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = CountedTable()
    monkeypatch.setattr(occurrences, "as_waiting", lambda *_: table)
    rows = OccurrenceRows(SETTINGS, span_of(0, 0), SHARD)
    for _ in range(9):
        list(rows.staged(empty_messages()))
    assert table.reads == 9


def test_occurrences_of_an_outage_are_staged_in_turn_whatever_message_they_are_of() -> None:
    """Chunks that overlap in due time would all be in memory at once when they are merged."""
    every = (("delayline-repeat", b"every 1m"), ("delayline-repeat-missed", b"all"), ("x", bytes(50)))
    rows = made(accepted(*[every] * 5), 100 * MINUTE, 101 * MINUTE, cut=0, piece_bytes=1_000)
    spans = [(row["min_deliver_at_ms"], row["max_deliver_at_ms"]) for row in rows[DUE]]
    assert len(spans) > 20
    assert all(last_ms <= next_ms for (_, last_ms), (next_ms, _) in pairwise(spans))
    assert sorted(contents(rows[DUE])) == [
        (offset, minute, b"%d" % minute, OCCURRENCE) for offset in range(5) for minute in range(1, 101)
    ]


EACH = (("delayline-repeat", b"every 1m"), ("delayline-repeat-missed", b"all"))


def in_turn(
    messages: pa.Table, clock: int, cutoff: int, settings: BatchSettings = SETTINGS, **limits: Any
) -> Iterator[list[tuple[int, int]]]:
    """Yield offset and minute of what batches stage of `messages`, one after the other, until nothing is left."""
    for passed in count():
        rows = made(messages, (clock + passed) * MINUTE, (cutoff + passed) * MINUTE, settings, **limits)
        again = made(messages, (clock + passed) * MINUTE, (cutoff + passed) * MINUTE, settings, **limits)
        assert rows == again, "a replay"
        yield sorted((each[:2] for each in contents(rows[DUE])), key=itemgetter(1, 0))
        messages = pa.concat_tables([decode_chunk(row["chunk"]) for row in rows[SEALED]]).combine_chunks()
        assert min(messages.column("deliver_at_ms").to_pylist()) >= START_MS + (cutoff + passed) * MINUTE
        if not rows[BOUND]:
            return
        # Everything before it was staged, and nothing else.
        (bound,) = rows[BOUND]
        assert {minute * MINUTE < bound["min_deliver_at_ms"] - START_MS for _, minute, *_ in contents(rows[DUE])} == {
            True
        }
        assert min(each.occurrence.at_ms for each in waiting_in(messages)) == bound["min_deliver_at_ms"]


def test_batch_stages_no_more_occurrences_than_it_can_and_the_rest_comes_next() -> None:
    batches = list(in_turn(accepted(*[EACH] * 7), 99, 100, most_staged=100))
    assert {len(each) for each in batches[:-1]} == {105}
    every = [each for batch in batches for each in batch]
    last = 99 + len(batches) - 1
    assert every == [(offset, minute) for minute in range(1, last + 1) for offset in range(7)]


@pytest.mark.parametrize("missed", MISSED)
def test_nothing_is_missed_while_the_bound_puts_it_off(missed: str) -> None:
    """Another publisher's occurrences take many batches, which begin at once. An outage was before them."""
    messages = accepted(*[EACH] * 10, (*EACH[:1], ("delayline-repeat-missed", missed.encode())))
    batches = list(in_turn(messages, 99, 100, most_staged=100))
    last = 99 + len(batches) - 1
    own = [minute for batch in batches for offset, minute in batch if offset == 10]
    # The very first one comes even if it is late, and so do occurrences that are due while the others are staged.
    assert own == [*([] if missed == ALL else [1]), *range(1 if missed == ALL else 99, last + 1)]
    assert last > 105


def test_batch_stages_no_more_bytes_of_occurrences_than_it_can() -> None:
    settings = replace(SETTINGS, group_bytes=1_000_000)
    large = (*EACH, ("x", bytes(100_000)))
    batches = list(in_turn(accepted(*[large] * 4), 99, 100, settings))
    assert {len(each) for each in batches[:-1]} == {12}
    assert len({each for batch in batches for each in batch}) == sum(map(len, batches))


def test_batch_stages_all_that_is_due_at_one_instant() -> None:
    """There is one occurrence of each message at the most, as of other messages."""
    settings = replace(SETTINGS, group_bytes=1)
    batches = list(islice(in_turn(accepted(*[EACH] * 5), 1, 3, settings), 2))
    assert batches == [[(offset, minute) for offset in range(5)] for minute in (1, 2)]


def test_name_is_where_the_occurrence_waits_that_is_left_for_the_next_batch() -> None:
    settings = replace(SETTINGS, group_bytes=1)
    rows = made(accepted((*EACH, ("delayline-name", b"n"))), 9 * MINUTE, 10 * MINUTE, settings)
    (names,) = (decode_chunk(row["chunk"]).to_pylist() for row in rows[NAMED])
    (sealed,) = (decode_chunk(row["chunk"]).to_pylist() for row in rows[SEALED])
    assert [each["deliver_at_ms"] for each in names] == [sealed[0]["deliver_at_ms"]] == [START_MS + 10 * MINUTE]


@given(
    st.sampled_from(MISSED),
    st.none() | st.integers(1, 12),
    st.integers(0, 40),
    st.integers(1, 40),
    st.integers(0, 12),
    st.none() | st.integers(0, 9),
)
def test_nothing_is_lost_or_doubled_if_a_batch_is_cut_off(
    missed: str, most: int | None, clock: int, ahead: int, committed: int, below: int | None
) -> None:
    """Whatever it has staged by then, the rest continues from there, by the clock of a later batch."""
    pairs = [("delayline-repeat", b"every 1m"), ("delayline-repeat-missed", missed.encode())]
    if most is not None:
        pairs.append(("delayline-repeat-count", b"%d" % most))
    messages = accepted(tuple(pairs))
    (waiting,) = waiting_in(messages)
    span = span_of(clock * MINUTE, (clock + ahead) * MINUTE + 1)
    every = list(islice(waiting.coming(span), 99))
    below_ms = None if below is None else START_MS + below * MINUTE
    end_ms = span.cutoff_ms if below_ms is None else min(below_ms, span.cutoff_ms)
    staged = [each for each in every if each.at_ms < end_ms][:committed]
    # Other messages may be staged behind them.
    last_ms = span.cutoff_ms if len(staged) < committed else (staged[-1].at_ms if staged else -1)
    last = OrderKey(last_ms, *(messages.column(name)[0].as_py() for name in ID))
    left = left_of_staged(messages, span, last, None if below_ms is None else end_ms)
    assert [each.occurrence for each in waiting_in(left)] == every[len(staged) :][:1]
    assert repeats(left).all()


def test_what_a_bound_put_off_is_not_missed_if_the_next_batch_is_cut_off() -> None:
    messages = accepted((("delayline-repeat", b"every 1m"),))
    put_off = as_waiting(
        messages, waiting_in(messages), [(0, Occurrence(2, START_MS + 2 * MINUTE))], START_MS + 9 * MINUTE
    )
    left = left_of_staged(put_off, span_of(9 * MINUTE, 10 * MINUTE), OrderKey(-1, "", 0, 0), None)
    (again,) = waiting_in(left)
    assert list(islice(again.coming(span_of(10 * MINUTE, 11 * MINUTE)), 2)) == [
        Occurrence(2, START_MS + 2 * MINUTE), Occurrence(3, START_MS + 3 * MINUTE)
    ]  # fmt: skip


@pytest.mark.parametrize("from_ms", [0, 100])
@pytest.mark.parametrize("number", [1, 9, 10**6])
def test_occurrence_that_waits_is_read_as_it_was_written(number: int, from_ms: int) -> None:
    messages = accepted((("delayline-repeat", b"every 10m"), ("x", b"1")))
    waiting = waiting_in(messages)
    occurrence = Occurrence(number, waiting[0].until_ms + 99)
    from_ms += waiting[0].until_ms
    (again,) = waiting_in(as_waiting(messages, waiting, [(0, occurrence)], from_ms))
    assert again == waiting[0]._replace(occurrence=occurrence, until_ms=max(from_ms, occurrence.at_ms))
