"""How a shard's due messages are cut into transactions, and which of them a replay skips."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.delivery.transactions import Transaction, behind, transactions
from state.order import OrderKey
from tests.messages import messages


def _due(*deliver_at_ms: int, value: bytes = b"v") -> pa.Table:
    rows = [{"offset": n, "deliver_at_ms": due, "value": value} for n, due in enumerate(deliver_at_ms)]
    return messages(rows)


def _dues(transaction: Transaction) -> list[int]:
    return [due for part in transaction.parts for due in part.column("deliver_at_ms").to_pylist()]


def _cut(*tables: pa.Table, most_messages: int = 100) -> list[Transaction]:
    return list(transactions(iter(tables), 5, 100, most_messages, 1_000))


@given(st.lists(st.integers(1, 40), max_size=8), st.integers(1, 7))
def test_each_message_is_in_exactly_one_transaction_in_order_and_no_transaction_exceeds_the_count(
    sizes: list[int], most_messages: int
) -> None:
    tables = [_due(*range(100 * n, 100 * n + size)) for n, size in enumerate(sizes)]
    cut = _cut(*tables, most_messages=most_messages)
    assert [due for each in cut for due in _dues(each)] == [
        due for table in tables for due in table.column("deliver_at_ms").to_pylist()
    ]
    assert all(each.count == len(_dues(each)) <= most_messages for each in cut)
    assert [each.start for each in cut] == [5, *(each.end for each in cut)][: len(cut)]


def test_overdue_messages_are_in_one_slice_however_far_apart_they_were_due() -> None:
    assert [_dues(each) for each in _cut(_due(1, 500), _due(9_000))] == [[1, 500, 9_000]]


def test_a_transaction_is_cut_by_bytes_and_takes_one_message_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.delivery.transactions._MOST_BYTES", 10_000)
    cut = _cut(_due(1, 2, 3, value=b"x" * 3_000), _due(4, value=b"x" * 50_000), _due(5, 6))
    assert [_dues(each) for each in cut] == [[1, 2], [3], [4], [5, 6]]
    assert [max(each.largest_bytes) > 50_000 for each in cut] == [False, False, True, False]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(2, 16))
def test_the_pieces_of_a_transaction_contain_all_its_messages_in_order_and_are_smaller(
    sizes: list[int], most_pieces: int
) -> None:
    (whole,) = _cut(*(_due(*range(100 * n, 100 * n + size)) for n, size in enumerate(sizes)), most_messages=200)
    pieces = whole.cut(most_pieces)
    assert [due for piece in pieces for due in _dues(piece)] == _dues(whole)
    assert [piece.start for piece in pieces] == [whole.start, *(piece.end for piece in pieces[:-1])]
    assert (pieces[-1].end, pieces[-1].last) == (whole.end, whole.last)
    assert len(pieces) <= most_pieces
    assert whole.count == 1 or all(piece.count < whole.count for piece in pieces)
    assert sum(piece.bytes for piece in pieces) == whole.bytes
    assert all(len(piece.parts) == len(piece.largest_bytes) for piece in pieces)


def test_the_last_message_gives_the_position_to_continue_from() -> None:
    (cut,) = _cut(_due(1, 2), _due(7, 9))
    assert cut.last == (9, "delayline-in", 0, 1)


@pytest.mark.parametrize(("last", "left"), [((2, 0), [2, 3]), ((2, 1), [3]), ((0, 9), [1, 2, 3]), ((9, 9), [])])
def test_a_replay_skips_messages_up_to_the_last_committed_one(last: tuple[int, int], left: list[int]) -> None:
    key = OrderKey(last[0], "delayline-in", 0, last[1])
    skipped: list[int] = []
    rest = list(behind(iter([_due(1, 2), _due(), _due(3)]), key, skipped.append))
    assert [due for table in rest for due in table.column("deliver_at_ms").to_pylist()] == left
    assert skipped == [3 - len(left)]
