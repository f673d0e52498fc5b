"""Decisions of a batch about its requests, once it is known where their messages are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from state.answers import Undecided
from state.buckets.cancelled import CANCELLED_SCHEMA
from state.buckets.retimed import RETIMED_SCHEMA
from state.cancel import ALWAYS, REQUEST_SCHEMA, WAITING, MessageId, Request
from state.message_ids import NO_IDS, ids_in, table_from, to_set
from state.names import NAMED_SCHEMA
from streaming.job.requests.decision import Decision, Facts, decide
from streaming.job.requests.names import LookedUp
from streaming.job.requests.outcomes import Outcomes
from streaming.job.requests.waiting import NOTHING_WAITS
from tests.messages import cancelled

# The new due time of messages that are made due at once, epoch ms.
NOW_MS = 1_000


def place(offset: int) -> MessageId:
    return ("in", 0, offset)


def replacing(*pairs: tuple[int, str]) -> list[Request]:
    """Return requests with the ids 100, 101, ... in this order, given as (asked offset, condition)."""
    return [Request(place(100 + at), place(asked), condition, 5) for at, (asked, condition) in enumerate(pairs)]


def plain(asked: int, own: int, delivers: bool) -> Request:
    """Return a request that comes without a message."""
    return Request(place(own), place(asked), delivers=delivers)


def decided(
    requests: Sequence[Request],
    taken: Sequence[int],
    dropped: Sequence[Request] = (),
    replaced_before: Mapping[MessageId, MessageId] | None = None,
) -> Decision:
    """Return the decision of a batch that has found the messages with the offsets `taken`."""
    table, dropped_asks = (
        table_from([(*request.asked, *request.id, *request[2:]) for request in several], REQUEST_SCHEMA)
        for several in (requests, dropped)
    )
    outcomes = Outcomes(ids_in(table), {"in": {"0": 1_000}})
    outcomes.take(cancelled((*place(offset), 5, 5) for offset in taken))
    none = CANCELLED_SCHEMA.empty_table()
    named = LookedUp(
        requests=REQUEST_SCHEMA.empty_table(),
        dropped=dropped_asks,
        superseded=none,
        retimed=RETIMED_SCHEMA.empty_table(),
        names=NAMED_SCHEMA.empty_table(),
        earlier=none,
    )
    facts = Facts(outcomes, named, none, NO_IDS, {}, replaced_before or {}, {}, NOTHING_WAITS, NOW_MS)
    return decide(table, facts, Undecided(0, 0, 1, 0))


def offsets(table: pa.Table) -> list[int]:
    own: list[int] = table.column("offset").to_pylist()
    return own


def test_what_is_neither_accepted_nor_cancelled_is_refused() -> None:
    requests = replacing((0, ALWAYS), (1, WAITING), (2, WAITING), (3, WAITING))
    decision = decided(requests, [1, 103])
    assert decision.replaced == {place(1): place(101)}
    assert to_set(decision.left_out) == {place(102), place(103)}
    assert offsets(decision.cancelled) == [1, 103, 102], "103 is cancelled once"


def test_what_is_dropped_is_refused_and_so_is_a_replacement_of_it() -> None:
    # The last one replaces the one before, and that one is dropped.
    first, second, _, last = replacing((0, ALWAYS), (1, WAITING), (2, WAITING), (101, WAITING))
    decision = decided([first, last], [101], [second])
    assert not decision.replaced
    assert to_set(decision.left_out) == {place(101), place(103)}
    assert offsets(decision.cancelled) == [101, 103]
    assert decided([], [], [second]).cancelled.to_pylist() == cancelled([(*place(101), 5, 5)]).to_pylist()
    # A dropped message is not made due either, whatever other requests want.
    assert not decided([plain(101, 200, delivers=True)], [101], [second]).moves.num_rows


def test_the_first_ask_for_a_message_decides_whether_it_is_made_due() -> None:
    wanted = [(1, 12, False), (1, 11, True), (2, 5, True), (2, 4, False), (3, 7, True), (4, 8, False)]
    decision = decided([plain(*each) for each in wanted], [1, 2, 4])
    assert offsets(decision.moves) == [1]
    assert decision.replaced == {place(1): NOW_MS}
    assert not decided([plain(4, 8, delivers=False)], [4]).moves.num_rows


def test_a_replacement_that_is_refused_is_not_made_due() -> None:
    requests = [*replacing((0, WAITING), (1, WAITING)), plain(100, 200, delivers=True), plain(101, 201, delivers=True)]
    decision = decided(requests, [1, 100, 101])
    assert to_set(decision.left_out) == {place(100)}
    assert offsets(decision.moves) == [101]
    assert decision.replaced == {place(1): place(101), place(101): NOW_MS}


def test_what_was_replaced_has_the_replacement_that_came_first_if_it_is_accepted() -> None:
    requests = replacing((1, WAITING), (1, ALWAYS), (3, ALWAYS), (4, ALWAYS), (100, WAITING))
    requests += [plain(2, 50, delivers=False), Request(place(110), place(2), WAITING, 5)]
    requests.append(Request(place(120), place(5), ALWAYS, 5, b"by name"))
    expected = {place(1): place(100), place(3): place(102), place(100): place(104)}
    assert decided(requests[::-1], [1, 2, 3, 5, 100]).replaced == expected
    # They are decided in the same way when all of them are read again after their batch was lost.
    again = [request for request in requests if request.id in expected.values()]
    assert not decided(again, [], replaced_before=expected).left_out
    assert to_set(decided(again, []).left_out) == {place(100), place(104)}
