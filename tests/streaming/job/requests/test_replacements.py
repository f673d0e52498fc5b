"""Which replacements a batch accepts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from state.cancel import ALWAYS, CONDITIONS, WAITING, MessageId, Request
from streaming.job.requests.decision import accepted_replacements, first_requests


def place(offset: int) -> MessageId:
    return ("in", 0, offset)


def asks_from(pairs: list[tuple[int, str | None]]) -> list[Request]:
    """Return requests with the ids 10, 11, ... in this order, given as (asked offset, condition)."""
    return [Request(place(10 + at), place(asked), condition, 5) for at, (asked, condition) in enumerate(pairs)]


def accepted(
    requests: Iterable[Request],
    cancelled: Collection[MessageId],
    replaced: Mapping[MessageId, MessageId] | None = None,
) -> set[MessageId]:
    """Return the replacements that a batch accepts if it cancels the messages `cancelled`."""
    every = list(requests)
    return accepted_replacements(every, first_requests(every, cancelled), replaced or {}, ())


def test_the_first_ask_cancels_and_only_what_has_cancelled_is_accepted() -> None:
    requests = asks_from([(1, WAITING), (1, WAITING), (1, ALWAYS), (2, None), (2, WAITING), (3, WAITING), (3, ALWAYS)])
    cancelled = {place(1), place(2)}
    assert accepted(requests, cancelled) == {place(10), place(12), place(16)}
    assert accepted(reversed(requests), cancelled) == {place(10), place(12), place(16)}


def test_of_a_chain_the_last_is_accepted_if_the_first_is() -> None:
    requests = asks_from([(1, WAITING), (10, WAITING), (11, WAITING)])
    chain = {place(1), place(10), place(11)}
    assert accepted(requests, chain) == {place(10), place(11), place(12)}
    assert accepted(requests, chain - {place(1)}) == set()


def test_what_a_lost_batch_has_cancelled_for_a_replacement_lets_that_be_accepted_when_it_is_read_again() -> None:
    # The replacement of 1 is read again, as 11. For 2 another replacement has been accepted.
    requests = asks_from([(1, WAITING), (1, WAITING), (2, WAITING), (11, WAITING)])
    replaced = {place(1): place(11), place(2): place(99)}
    assert accepted(requests, set()) == set()
    assert accepted(requests, set(), replaced) == {place(11)}
    assert accepted(requests, {place(11)}, replaced) == {place(11), place(13)}


def test_what_the_batch_has_taken_out_itself_counts_more_than_what_a_lost_one_has_stored() -> None:
    requests = [Request(place(11), place(1), WAITING, 5)]
    assert accepted(requests, {place(1)}, {place(1): place(1)}) == {place(11)}


def test_the_first_ask_for_each_message_that_is_found_is_its_cause_whatever_it_wants() -> None:
    requests = asks_from([(1, WAITING), (1, ALWAYS), (2, None), (2, WAITING), (3, ALWAYS), (4, ALWAYS), (10, WAITING)])
    causes = first_requests(reversed(requests), {place(each) for each in (1, 2, 3, 10)})
    assert causes == {place(1): requests[0], place(2): requests[2], place(3): requests[4], place(10): requests[6]}


def test_a_circle_is_not_accepted() -> None:
    requests = asks_from([(11, WAITING), (10, WAITING), (12, WAITING)])
    assert accepted(requests, {place(10), place(11), place(12)}) == set()


def test_a_long_chain_takes_time_in_proportion() -> None:
    requests = asks_from([(1, WAITING), *((9 + at, WAITING) for at in range(1, 20_000))])
    everything = {request.asked for request in requests}
    assert len(accepted(requests, everything)) == 20_000


@given(
    st.lists(st.tuples(st.integers(1, 25), st.sampled_from([None, *CONDITIONS])), max_size=16),
    st.sets(st.integers(1, 25)),
)
def test_the_decision_is_that_of_the_model(pairs: list[tuple[int, str | None]], cancelled: set[int]) -> None:
    requests, taken = asks_from(pairs), {place(each) for each in cancelled}
    replacements = {request.id for request in requests if request.condition}
    model: set[MessageId] = set()
    while True:
        # The smallest set by the rules: first replacements that depend on no other, then those that depend on them.
        more = {
            request.id
            for request in requests
            if request.condition == ALWAYS
            or (
                request.condition == WAITING
                and request.asked in taken
                and request.id == min(each.id for each in requests if each.asked == request.asked)
                and (request.asked not in replacements or request.asked in model)
            )
        }
        if more == model:
            break
        model = more
    assert accepted(requests, taken) == model
