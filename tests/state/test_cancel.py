"""Which rows stay when messages are cancelled."""

from __future__ import annotations

from state.cancel import without_cancelled
from state.kinds import ANSWER, DEAD_LETTER, MESSAGE, REQUEST
from state.message_ids import ids_of
from tests.messages import messages


def test_of_the_cancelled_ids_asks_and_dead_letters_stay() -> None:
    kinds = (MESSAGE, DEAD_LETTER, REQUEST, ANSWER)
    table = messages([{"offset": 1}, *({"offset": 2, "kind": kind} for kind in kinds)])
    left = without_cancelled(table, ids_of([("delayline-in", 0, 2)]))
    assert left.select(["offset", "kind"]).to_pylist() == [
        {"offset": 1, "kind": MESSAGE},
        {"offset": 2, "kind": DEAD_LETTER},
        {"offset": 2, "kind": REQUEST},
        {"offset": 2, "kind": ANSWER},
    ]
    assert without_cancelled(table, ids_of([("delayline-in", 0, 3)])) is table
