from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.intake.accept import accept
from state.buckets.operator import DUE, NAMED, SEALED
from state.buckets.parts import following_part
from state.checkpoint.batch_settings import DelayPolicy
from state.kinds import OCCURRENCE, REPEATING, is_delivered, is_message, repeats
from state.message import decode_chunk
from state.names import named
from state.repeats import occurrences
from state.repeats.occurrences import OccurrenceRows, as_waiting, left_of_staged, waiting_in
from state.repeats.schedule import MISSED, Occurrence
from tests.messages import PARTITIONS, headers, records, some_batch_settings

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


def made(messages: pa.Table, clock_ms: int, cutoff_ms: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a batch by kind."""
    rows = OccurrenceRows(SETTINGS, BUCKET, SHARD, START_MS + clock_ms, START_MS + cutoff_ms)
    found: dict[str, list[dict[str, Any]]] = {DUE: [], SEALED: [], NAMED: []}
    rows.add(messages)
    for batch in rows.finish():
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
    rows = made(messages, 0, 25 * MINUTE)
    assert contents(rows[DUE]) == [(0, 10, b"1", OCCURRENCE), (0, 20, b"2", OCCURRENCE), (2, 30, b"1", OCCURRENCE)]
    assert contents(rows[SEALED]) == [(0, 30, b"3", REPEATING)]
    (segment,) = rows[SEALED]
    assert (segment["part"], segment["repeats"], segment["count"]) == (following_part(BUCKET), 1, 1)
    delivered = decode_chunk(rows[DUE][0]["chunk"])
    assert delivered.column("headers").to_pylist()[0] == headers(("x", b"1"), ("delayline-occurrence", b"1"))
    # Several have one id: a release process must not take one out for another.
    assert is_delivered(delivered).all()
    assert not is_message(delivered).any()
    assert not repeats(delivered).any()


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
    settings = some_batch_settings(segment_max_messages=2)
    rows = OccurrenceRows(settings, BUCKET, SHARD, START_MS, START_MS + 15 * MINUTE)
    rows.add(messages)
    numbers = [row["segment"] for batch in rows.finish() for row in batch.to_pylist() if row["kind"] == SEALED]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert numbers[0] >= 3 << 18


def test_occurrences_of_an_outage_are_staged_in_turn_whatever_message_they_are_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks that overlap in due time would all be in memory at once when they are merged."""
    monkeypatch.setattr(occurrences, "_TOGETHER_BYTES", 1_000)
    every = (("delayline-repeat", b"every 1m"), ("delayline-repeat-missed", b"all"), ("x", bytes(50)))
    rows = made(accepted(*[every] * 5), 100 * MINUTE, 101 * MINUTE)
    spans = [(row["min_deliver_at_ms"], row["max_deliver_at_ms"]) for row in rows[DUE]]
    assert len(spans) > 20
    assert all(last_ms <= next_ms for (_, last_ms), (next_ms, _) in pairwise(spans))
    assert sorted(contents(rows[DUE])) == [
        (offset, minute, b"%d" % minute, OCCURRENCE) for offset in range(5) for minute in range(1, 101)
    ]


@given(
    st.sampled_from(MISSED), st.none() | st.integers(1, 12), st.integers(0, 40), st.integers(1, 40), st.integers(0, 12)
)
def test_nothing_is_lost_or_doubled_if_a_batch_is_cut_off(
    missed: str, most: int | None, clock: int, ahead: int, committed: int
) -> None:
    """Whatever it has handed over by then: what is left goes on from there, and by the clock of a later batch."""
    pairs = [("delayline-repeat", b"every 1m"), ("delayline-repeat-missed", missed.encode())]
    if most is not None:
        pairs.append(("delayline-repeat-count", b"%d" % most))
    settings = some_batch_settings(policy=DelayPolicy(repeats=True))
    table = records([{"timestamp_ms": START_MS, "headers": headers(*pairs)}])
    messages = accept(table, settings, START_MS).messages
    ((schedule, first, _),) = waiting_in(messages)
    clock_ms, cutoff_ms = START_MS + clock * MINUTE, START_MS + (clock + ahead) * MINUTE + 1
    if first.at_ms >= cutoff_ms:
        return
    staged, following = schedule.stage(first, clock_ms, cutoff_ms)
    done = staged[:committed]
    last_ms = done[-1].at_ms if done else -1

    def are_handed_over(own: pa.Table) -> np.ndarray:
        return np.asarray(own.column("deliver_at_ms").to_numpy() <= last_ms)

    left = left_of_staged(messages, clock_ms, cutoff_ms, are_handed_over)
    expected = [*staged[committed:], *([following] if following else [])][:1]
    assert [each.occurrence for each in waiting_in(left)] == expected
    assert repeats(left).all()


@pytest.mark.parametrize("number", [1, 9, 10**6])
def test_occurrence_that_waits_is_read_as_it_was_written(number: int) -> None:
    messages = accepted((("delayline-repeat", b"every 10m"), ("x", b"1")))
    waiting = waiting_in(messages)
    occurrence = Occurrence(number, START_MS + 99)
    (again,) = waiting_in(as_waiting(messages, waiting, [(0, occurrence)]))
    assert again == waiting[0]._replace(occurrence=occurrence)
