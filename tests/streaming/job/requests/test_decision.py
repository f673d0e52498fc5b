"""What becomes of the replacements of a batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state.cancel import ALWAYS, ASK_SCHEMA, WAITING
from state.message_ids import each_of
from streaming.job.requests import replacements as module
from streaming.job.requests.replacements import Replacements
from tests.messages import cancelled


def replacements(*conditions: str) -> pa.Table:
    rows = [
        ("in", 0, at, "in", 0, 100 + at, condition, 5, None, 5, None, False, False)
        for at, condition in enumerate(conditions)
    ]
    return pa.table([list(column) for column in zip(*rows, strict=True)], names=ASK_SCHEMA.names).cast(ASK_SCHEMA)


def as_cancelled(*offsets: int) -> pa.Table:
    return cancelled(("in", 0, offset, 5, 5) for offset in offsets)


def test_what_is_neither_accepted_nor_cancelled_is_refused() -> None:
    asks = replacements(ALWAYS, WAITING, WAITING, WAITING)
    decided = Replacements.of(asks, asks.slice(0, 0), as_cancelled(1, 103), {})
    assert each_of(decided.accepted) == {("in", 0, 100), ("in", 0, 101)}
    assert decided.replaced == {("in", 0, 1): ("in", 0, 101)}
    assert decided.refused.column("offset").to_pylist() == [102], "103 is cancelled otherwise"


def test_what_is_dropped_is_refused_and_so_is_a_replacement_of_it() -> None:
    asks = replacements(ALWAYS, WAITING, WAITING)
    # The last one replaces the one before, and that one is dropped.
    dropped, last = asks.slice(1, 1), asks.slice(2).set_column(2, "offset", pa.array([101]))
    taken_out = as_cancelled(101)
    decided = Replacements.of(pa.concat_tables([asks.slice(0, 1), last]), dropped, taken_out, {})
    assert each_of(decided.accepted) == {("in", 0, 100)}
    assert decided.refused.column("offset").to_pylist() == [102], "101 is cancelled otherwise"
    assert (
        Replacements.of(asks.slice(0, 0), dropped, as_cancelled(), {}).refused.to_pylist()
        == as_cancelled(101).to_pylist()
    )


def delivering(*rows: tuple[int, int, bool]) -> pa.Table:
    """Return asks: the offset of each one's message, its own, and whether it wants the message now. No replacements."""
    whole = [("in", 0, about, "asks", 0, own, *[None] * 5, delivers, False) for about, own, delivers in rows]
    return pa.table([list(column) for column in zip(*whole, strict=True)], names=ASK_SCHEMA.names).cast(ASK_SCHEMA)


def test_the_first_ask_for_a_message_decides_and_none_becomes_an_object_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "asks_of", lambda _: pytest.fail("there may be 10,000 of them"))
    asks = delivering((1, 12, False), (1, 11, True), (2, 5, True), (2, 4, False), (3, 7, True), (4, 8, False))
    taken = as_cancelled(1, 2, 4)
    decided = Replacements.of(asks, asks.slice(0, 0), taken, {})
    assert each_of(decided.delivered) == {("in", 0, 1)}
    assert not decided.accepted
    assert not Replacements.of(delivering((4, 8, False)), asks.slice(0, 0), taken, {}).delivered


def test_a_replacement_that_is_refused_is_not_made_due() -> None:
    asks = pa.concat_tables([replacements(WAITING, WAITING), delivering((100, 200, True), (101, 201, True))])
    taken = as_cancelled(1, 100, 101)
    decided = Replacements.of(asks, asks.slice(0, 0), taken, {})
    assert each_of(decided.accepted) == {("in", 0, 101)}
    assert each_of(decided.delivered) == {("in", 0, 101)}
