"""The outcomes of the messages that requests are for."""

from __future__ import annotations

import pyarrow as pa

from state.cancel import NOTHING
from state.message_ids import ID_SCHEMA, ids_of, to_set
from state.reasons import Reason
from streaming.job.requests.outcomes import Outcomes
from tests.messages import cancelled

ENDS = {"in": {"0": 10, "1": 5}}
EARLY, LATE, OTHER, UNKNOWN = ("in", 0, 3), ("in", 0, 9), ("in", 1, 4), ("elsewhere", 0, 1)


def table(*ids: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ID_SCHEMA.names, each, strict=True)) for each in ids], schema=ID_SCHEMA)


def outcome(outcomes: Outcomes, *ids: tuple[str, int, int]) -> list[Reason | None]:
    found: list[Reason | None] = outcomes.of(table(*ids)).tolist()
    return found


def test_what_the_batch_does_not_read_is_not_open() -> None:
    asked = [EARLY, ("in", 0, 10), ("in", 2, 0), UNKNOWN]
    outcomes = Outcomes(ids_of(asked), ENDS)
    assert outcome(outcomes, *asked) == [None, Reason.NOT_READ, Reason.NOT_READ, Reason.NO_INPUT_TOPIC]
    assert to_set(outcomes.open_ids()) == {EARLY}


def test_an_outcome_is_found_for_each_ask_in_the_order_of_the_asks() -> None:
    outcomes = Outcomes(ids_of([EARLY, LATE, OTHER]), ENDS)
    outcomes.take(cancelled([(*LATE, 5, 5)]))
    assert outcome(outcomes, LATE, EARLY, LATE, OTHER) == [Reason.WITHDRAWN, None] * 2
    assert outcome(outcomes, NOTHING) == [Reason.NO_SUCH_NAME]
    assert to_set(outcomes.open_ids(but=ids_of([OTHER]))) == {EARLY}


def test_what_was_cancelled_before_is_no_row_of_this_batch_and_what_nobody_asked_for_may_be() -> None:
    outcomes = Outcomes(ids_of([EARLY, LATE]), ENDS)
    outcomes.set(ids_of([EARLY]), Reason.WITHDRAWN)
    outcomes.take(cancelled([(*OTHER, 5, 5)]))
    assert outcomes.taken.select(ID_SCHEMA.names) == table(OTHER)
    assert outcome(outcomes, EARLY, LATE) == [Reason.WITHDRAWN, None]


def test_what_is_open_at_the_end_waits_or_is_deleted_or_staged() -> None:
    asked = [EARLY, LATE, OTHER, ("in", 0, 2)]
    outcomes = Outcomes(ids_of(asked), ENDS)
    outcomes.set(ids_of([OTHER]), Reason.WITHDRAWN)
    outcomes.close({("in", 0): 4, ("in", 1): 5}, ids_of([OTHER, ("in", 0, 2)]))
    expected = [Reason.RECORD_DELETED, Reason.STAGED, Reason.WITHDRAWN, Reason.REPEATS]
    assert outcome(outcomes, *asked) == expected


def test_of_no_ids_none_is_open() -> None:
    assert Outcomes({}, ENDS).open_ids() == {}
