"""Messages that get another due time once their batch has decided: among the rows that its state stage gives."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from state import message_ids
from state.buckets.moves import MOVES_SCHEMA, _Moved, moving
from state.buckets.operator import DUE, FILLER, KEPT, SEALED, SHARD_OUTPUT_SCHEMA, ShardRows
from state.buckets.table_rows import stored_rows
from state.checkpoint.batch_settings import DelayPolicy
from state.index.locate import LOCATED_SCHEMA
from state.kinds import DUE_NOW, MESSAGE, REQUEST
from state.message import decode_chunk, empty_messages, encode_chunk
from state.message_ids import ID
from state.order import in_order
from state.shards import shards_of
from tests.messages import CountedTable, messages, some_batch_settings

SETTINGS = some_batch_settings(segment_max_messages=3, policy=DelayPolicy(most_waiting=100))
CUTOFF_MS, BUCKET, SHARDS = 1_000, 7, SETTINGS.shards
# Messages by due time and output partition, and to when some of them are moved.
_MESSAGES = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 3)), min_size=1, max_size=20)
_MOVES = st.dictionaries(st.integers(0, 25), st.sampled_from([0, 400, 999, 1_000, 1_001, 5_000]), max_size=8)


def moves_of(dues_ms: dict[int, int]) -> pa.Table:
    rows = [("delayline-in", 0, offset, due_ms, offset % 2 == 1) for offset, due_ms in dues_ms.items()]
    return pa.Table.from_pylist([dict(zip(MOVES_SCHEMA.names, row, strict=True)) for row in rows], MOVES_SCHEMA)


def batch_rows(every: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a batch with these messages, of the shards' own groups and of an overflow group each."""
    rows: list[dict[str, Any]] = []
    for shard in range(SHARDS):
        own = every.filter(pa.array(shards_of(every, SHARDS) == shard))
        for first_segment, part in ((0, own.slice(0, own.num_rows // 2)), (1 << 20, own.slice(own.num_rows // 2))):
            ordered = in_order(part)
            dues = ordered.column("deliver_at_ms").to_numpy()
            group = ShardRows(SETTINGS, BUCKET, shard, CUTOFF_MS, first_segment)
            rows += group.due(ordered.filter(pa.array(dues < CUTOFF_MS)))
            rows += group.sealed(ordered.filter(pa.array(dues >= CUTOFF_MS)))
            rows.append(group.kept(empty_messages(), 0, "{}"))
    return rows


def moved_rows(rows: list[dict[str, Any]], moves: dict[int, int], **limits: int) -> list[dict[str, Any]]:
    return moved_by(moves_of(moves), rows, **limits)


def moved_by(moves: pa.Table, rows: list[dict[str, Any]], **limits: int) -> list[dict[str, Any]]:
    """Return the rows of a batch after moves of these messages, which are not in stored chunks."""
    batches = pa.Table.from_pylist(rows, schema=SHARD_OUTPUT_SCHEMA).to_batches(max_chunksize=2)
    move = moving(moves, LOCATED_SCHEMA.empty_table(), lambda _: 0, SETTINGS, BUCKET, CUTOFF_MS, **limits)
    return [row for each in move(batches) for row in each.to_pylist()]


def dues_of(rows: list[dict[str, Any]], kind: str) -> dict[int, int]:
    tables = [decode_chunk(row["chunk"]) for row in rows if row["kind"] == kind]
    pairs = [(row["offset"], row["deliver_at_ms"]) for table in tables for row in table.to_pylist()]
    assert len(pairs) == len(dict(pairs)), "each once"
    return dict(pairs)


@given(_MESSAGES, _MOVES)
@example([(0, 0), (1_500, 0)], {0: 1_500, 1: 0})
@example([(1_500, 1)], {0: 1_600})
def test_each_message_is_in_one_row_of_its_shard_by_its_new_due_time(
    several: list[tuple[int, int]], moves: dict[int, int]
) -> None:
    every = messages(
        {"offset": offset, "deliver_at_ms": due, "output_partition": partition}
        for offset, (due, partition) in enumerate(several)
    )
    rows = moved_rows(batch_rows(every), moves)
    # Those with an odd offset are due at once, at that time or sooner.
    wanted = {
        each: min(due_ms, several[each][0]) if each % 2 else due_ms
        for each, due_ms in moves.items()
        if each < len(several)
    }
    expected = {offset: wanted.get(offset, due) for offset, (due, _) in enumerate(several)}
    is_due = {each for each, due in expected.items() if due < CUTOFF_MS} | {each for each in wanted if each % 2}
    assert dues_of(rows, DUE) == {each: due for each, due in expected.items() if each in is_due}
    assert dues_of(rows, SEALED) == {each: due for each, due in expected.items() if each not in is_due}
    assert Counter(row["kind"] for row in rows)[KEPT] == 2 * SHARDS
    numbers = [(row["shard"], row["segment"]) for row in rows if row["kind"] == SEALED]
    assert len(set(numbers)) == len(numbers)
    for row in rows:
        if row["kind"] == KEPT:
            continue
        own = decode_chunk(row["chunk"])
        assert own.equals(in_order(own))
        assert (shards_of(own, SHARDS) == row["shard"]).all()
        dues = own.column("deliver_at_ms").to_pylist()
        bounds = (row["min_deliver_at_ms"], row["max_deliver_at_ms"], row["count"], row["bucket"], row["cutoff_ms"])
        assert bounds == (dues[0], dues[-1], len(dues), BUCKET, CUTOFF_MS)
        if row["kind"] == SEALED:
            assert row["count"] <= SETTINGS.segment_max_messages
            assert json.loads(row["by_topic"]) == {"delayline-in": [[dues[0], dues[-1], len(dues)]]}
    # Sealed rows can be stored, with their index.
    sealed = pa.Table.from_pylist([row for row in rows if row["kind"] == SEALED], schema=SHARD_OUTPUT_SCHEMA)
    list(stored_rows(4)(sealed.to_batches()))


def test_rows_without_moved_messages_are_as_they_were() -> None:
    every = messages({"offset": offset, "deliver_at_ms": 300 * offset} for offset in range(8))
    rows = batch_rows(every)
    # The rows of a batch are compared whole, whatever the rows in between cost.
    assert moved_rows(rows, {99: 5}) == rows
    left = [row for row in moved_rows(rows, {0: 1}) if row["kind"] == SEALED]
    assert left == [row for row in rows if row["kind"] == SEALED]


def test_fillers_end_with_the_state_stage() -> None:
    rows = batch_rows(messages([{"offset": 1, "deliver_at_ms": 5}]))
    filler = {**rows[-1], "kind": FILLER, "chunk": b""}
    assert moved_rows([filler, *rows, filler], {}) == rows


def test_a_dead_letter_and_an_ask_with_the_id_of_a_moved_message_stay() -> None:
    rows: list[dict[str, Any]] = [
        {"offset": 1, "deliver_at_ms": 5, "kind": REQUEST, "key": b"delayline-in/0/9"},
        {"offset": 1, "deliver_at_ms": 6},
        {"offset": 2, "deliver_at_ms": 7, "error_code": "bad-delay", "error_text": ""},
    ]
    moved = moved_rows(batch_rows(messages(rows)), {1: 400, 2: 400})
    found = [row for each in moved if each["kind"] == DUE for row in decode_chunk(each["chunk"]).to_pylist()]
    assert sorted((row["offset"], row["kind"], row["deliver_at_ms"]) for row in found) == [
        (1, REQUEST, 5),
        (1, DUE_NOW, 6),
        (2, 1, 7),
    ]


def test_moves_of_several_partitions_come_in_any_order() -> None:
    ids = [(partition, offset) for partition in (2, 0, 1) for offset in (9, 3, 5)]
    every = messages({"partition": own[0], "offset": own[1], "deliver_at_ms": 9_000} for own in ids)
    rows = [("delayline-in", *own, 2_000 + number, False) for number, own in enumerate(ids[::2])]
    moves = pa.Table.from_pylist([dict(zip(MOVES_SCHEMA.names, row, strict=True)) for row in rows], MOVES_SCHEMA)
    moved = moved_by(moves, batch_rows(every))
    sealed = [decode_chunk(row["chunk"]) for row in moved if row["kind"] == SEALED]
    found = {(row["partition"], row["offset"]): row["deliver_at_ms"] for each in sealed for row in each.to_pylist()}
    assert found == dict.fromkeys(ids, 9_000) | {own: 2_000 + number for number, own in enumerate(ids[::2])}


def test_many_moved_messages_become_rows_some_at_a_time() -> None:
    every = messages({"offset": offset, "deliver_at_ms": 300 * offset} for offset in range(20))
    rows = moved_rows(batch_rows(every), dict.fromkeys(range(0, 20, 2), 9_000), piece_bytes=1)
    assert dues_of(rows, SEALED) == dict.fromkeys(range(0, 20, 2), 9_000) | {
        each: 300 * each for each in range(5, 20, 2)
    }
    numbers = [(row["shard"], row["segment"]) for row in rows if row["kind"] == SEALED]
    assert len(set(numbers)) == len(numbers)


def test_moves_of_many_input_partitions_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    every = messages({"offset": at, "partition": at, "deliver_at_ms": 300} for at in range(200))
    moves = every.select(ID).append_column("deliver_at_ms", pa.array([1] * 200)).append_column(
        "at_once", pa.array([True] * 200)
    )  # fmt: skip
    rows = batch_rows(every)
    by_source = Mock(side_effect=message_ids.by_source)
    monkeypatch.setattr(message_ids, "by_source", by_source)
    moved = moved_by(moves, rows)
    assert by_source.call_count <= 1 + sum(row["kind"] in (DUE, SEALED) for row in rows)
    assert len(dues_of(moved, DUE)) == 200


def test_bytes_of_what_is_collected_are_asked_for_once() -> None:
    moved, table = _Moved(SETTINGS, BUCKET, CUTOFF_MS, piece_bytes=1 << 20), CountedTable()
    for _ in range(9):
        list(moved.add(0, table))
    assert table.reads == 9


def test_messages_of_stored_chunks_are_copied_to_due_rows_of_their_shards() -> None:
    settings = replace(SETTINGS, shard_keys=(0, 1))
    stored = messages(
        {"offset": offset, "deliver_at_ms": 50_000 + offset, "output_partition": offset} for offset in range(4)
    )
    chunks = [
        pa.RecordBatch.from_pydict({"bucket": [at], "chunk": [encode_chunk(stored.slice(at, 2))]}) for at in (0, 2)
    ]
    # An old message in another bucket may have the same id, and so may a staged message in the same bucket.
    chunks += [pa.RecordBatch.from_pydict({"bucket": [at], "chunk": [encode_chunk(own)]})
               for at, own in ((4, stored), (2, stored.slice(0, 2)))]  # fmt: skip
    staged = messages([{"offset": 1, "deliver_at_ms": 40_000}])
    chunks.append(pa.RecordBatch.from_pydict({"bucket": [0], "chunk": [encode_chunk(staged)]}))
    places = pa.table({"topic": ["delayline-in"] * 3, "partition": [0] * 3, "offset": [1, 2, 3], "bucket": [0, 2, 2]})
    moves = moves_of({0: 1, 1: 10, 2: 20, 3: 5})
    for from_ms, expected in (
        ({0: 50_000, 2: 50_000, 4: 0}, {1: 10, 2: 20, 3: 5}),
        ({0: 50_000, 2: 60_000, 4: 0}, {1: 10}),
        ({0: 60_000, 2: 0, 4: 0}, {2: 20, 3: 5}),
    ):
        moved = moving(moves, places, from_ms.__getitem__, settings, BUCKET, CUTOFF_MS)(chunks)
        rows = [row for each in moved for row in each.to_pylist()]
        assert dues_of(rows, DUE) == expected
        assert not dues_of(rows, SEALED)
    rows = [
        row
        for each in moving(moves, places, lambda _: 0, settings, BUCKET, CUTOFF_MS)(chunks[:2])
        for row in each.to_pylist()
    ]
    assert {row["shard"] for row in rows} == {0, 1}


def test_what_is_due_at_once_is_of_a_kind_of_its_own() -> None:
    every = messages({"offset": offset, "deliver_at_ms": 5_000} for offset in range(4))
    rows = moved_rows(batch_rows(every), {1: 400, 2: 400})
    tables = [decode_chunk(row["chunk"]) for row in rows if row["kind"] in (DUE, SEALED)]
    kinds = {row["offset"]: row["kind"] for table in tables for row in table.to_pylist()}
    assert kinds == {0: MESSAGE, 1: DUE_NOW, 2: MESSAGE, 3: MESSAGE}
