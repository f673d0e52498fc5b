"""What became of the messages that are asked for."""

from __future__ import annotations

import pyarrow as pa

from state.message_ids import ID_SCHEMA, each_of, ids_of
from streaming.job.requests.outcomes import (
    CANCELLED,
    HANDED_OVER,
    NO_INPUT,
    OLD,
    OPEN,
    UNREAD,
    Outcomes,
)
from tests.messages import cancelled

ENDS = {"in": {"0": 10, "1": 5}}
EARLY, LATE, OTHER, UNKNOWN = ("in", 0, 3), ("in", 0, 9), ("in", 1, 4), ("elsewhere", 0, 1)


def table(*ids: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ID_SCHEMA.names, each, strict=True)) for each in ids], schema=ID_SCHEMA)


def outcome(outcomes: Outcomes, *ids: tuple[str, int, int]) -> list[int]:
    found: list[int] = outcomes.of(table(*ids)).tolist()
    return found


def test_what_the_batch_does_not_read_is_not_open() -> None:
    asked = [EARLY, ("in", 0, 10), ("in", 2, 0), UNKNOWN]
    outcomes = Outcomes(ids_of(asked), ENDS)
    assert outcome(outcomes, *asked) == [OPEN, UNREAD, UNREAD, NO_INPUT]
    assert each_of(outcomes.open_ids()) == {EARLY}


def test_an_outcome_is_found_for_each_ask_in_the_order_of_the_asks() -> None:
    outcomes = Outcomes(ids_of([EARLY, LATE, OTHER]), ENDS)
    outcomes.take(cancelled([(*LATE, 5, 5)]))
    assert outcome(outcomes, LATE, EARLY, LATE, OTHER) == [CANCELLED, OPEN, CANCELLED, OPEN]
    assert each_of(outcomes.open_ids(but=ids_of([OTHER]))) == {EARLY}


def test_what_was_cancelled_before_is_no_row_of_this_batch_and_what_nobody_asked_for_may_be() -> None:
    outcomes = Outcomes(ids_of([EARLY, LATE]), ENDS)
    outcomes.set_cancelled(ids_of([EARLY]))
    outcomes.take(cancelled([(*OTHER, 5, 5)]))
    assert outcomes.taken.select(ID_SCHEMA.names) == table(OTHER)
    assert outcome(outcomes, EARLY, LATE) == [CANCELLED, OPEN]


def test_what_is_open_at_the_end_is_deleted_or_handed_over() -> None:
    outcomes = Outcomes(ids_of([EARLY, LATE, OTHER]), ENDS)
    outcomes.set_cancelled(ids_of([OTHER]))
    outcomes.close({("in", 0): 4, ("in", 1): 5})
    assert outcome(outcomes, EARLY, LATE, OTHER) == [OLD, HANDED_OVER, CANCELLED]


def test_of_no_ids_none_is_open() -> None:
    assert Outcomes({}, ENDS).open_ids() == {}
