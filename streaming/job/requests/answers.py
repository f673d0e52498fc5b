"""The answers to a batch's asks, once it is known what became of the messages that they ask for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.cancel import (
    ALWAYS,
    OLD_MS,
    Ask,
    MessageId,
    Undecided,
    answer,
    answers_of,
    answers_to,
    asks_of,
    no_answers,
    undecided_asks,
)
from state.message_ids import Ids, among
from state.reasons import Reason
from streaming.job.requests.outcomes import CANCELLED, DELIVERED, HANDED_OVER, NO_INPUT, OLD, UNREAD, Outcomes

_REASONS = {
    CANCELLED: Reason.WITHDRAWN,
    DELIVERED: Reason.RELEASED,
    HANDED_OVER: Reason.HANDED_OVER,
    OLD: Reason.RECORD_DELETED,
    UNREAD: Reason.NOT_READ,
    NO_INPUT: Reason.NO_INPUT_TOPIC,
}
# Of asks that their message be due at once.
_REASONS_TO_DELIVER = _REASONS | {CANCELLED: Reason.ALREADY_CANCELLED, DELIVERED: Reason.MADE_DUE}


def answers_by(
    outcomes: Outcomes, asks: pa.Table, not_waiting: Ids, accepted: frozenset[MessageId], undecided: Undecided
) -> pa.Table:
    """Return the answers to `asks` (`ASK_SCHEMA`), as a table of `ANSWER_SCHEMA`.

    Args:
        outcomes: what became of each message that is asked for.
        asks: the asks, by the id of a message.
        not_waiting: the messages that the batch did not find, whatever the release processes have answered since.
        accepted: the replacements that are accepted.
        undecided: what takes the place of the answer if the release processes must decide.
    """
    # Of a replay, too, as many are handed over, whatever the release processes have answered since.
    goes_on = np.asarray(pc.is_valid(asks.column("name"))) & np.asarray(pc.is_valid(asks.column("condition")))
    goes_on &= ~np.asarray(asks.column("wants_answer").fill_null(False))
    others, messages = asks.filter(pa.array(~goes_on)), asks.filter(pa.array(goes_on))
    return pa.concat_tables(
        [
            _answers(others, outcomes.of(others), accepted, undecided),
            _passed_on(messages, outcomes.of(messages), not_waiting, undecided),
        ]
    )


def answers_for_nothing(asks: pa.Table) -> pa.Table:
    """Return the answers to `asks` by a name that no message has: none to a message that wants none."""
    is_answered = pc.or_(pc.is_null(asks.column("condition")), asks.column("wants_answer").fill_null(False))
    answers = {
        ask.id: answer(ask, Reason.NO_SUCH_NAME, None if ask.condition is None else True)
        for ask in asks_of(asks.filter(is_answered))
    }
    return pa.concat_tables([answers_of(answers), no_answers(asks.filter(pc.invert(is_answered)))])


def answers_for_kept(dropped: pa.Table) -> pa.Table:
    """Return the answers to the asks of messages that are `dropped`, with the id of the one that keeps its name."""
    wants_answer = dropped.column("wants_answer").fill_null(False)
    asks = asks_of(dropped.filter(wants_answer))
    answers = answers_of(
        {ask.id: answer(ask, Reason.NAME_KEPT, False) for ask in asks}, {ask.id: ask.asked for ask in asks}
    )
    return pa.concat_tables([answers, no_answers(dropped.filter(pc.invert(wants_answer)))])


def _answers(
    asks: pa.Table, outcomes: npt.NDArray[np.int8], accepted: frozenset[MessageId], undecided: Undecided
) -> pa.Table:
    """Return the answer to each ask, by what became of the message that it asks for; or `undecided` in its place."""
    is_replacement = np.asarray(pc.is_valid(asks.column("condition")))
    # What is accepted in any case may still take the place of a message that is handed over.
    is_always = np.asarray(pc.equal(asks.column("condition"), ALWAYS).fill_null(False))
    goes_on = is_always & np.isin(outcomes, (HANDED_OVER, OLD))
    delivers = np.asarray(asks.column("delivers"))
    # One by one: the other replacements, and ids that may need an escape.
    apart = (is_replacement & ~goes_on) | (outcomes == NO_INPUT)
    several: list[pa.Table] = []
    for outcome in np.unique(outcomes[~apart]).tolist():
        for replaces, delivering in ((False, False), (True, False), (False, True)):
            rows = (outcomes == outcome) & ~apart & (goes_on == replaces) & (delivers == delivering)
            terms = undecided._replace(replaces=replaces, delivers=delivering)
            several.append(_same_answer(asks.filter(pa.array(rows)), outcome, terms))
    single: dict[MessageId, bytes] = {}
    about: dict[MessageId, MessageId] = {}
    for ask, outcome in zip(asks_of(asks.filter(pa.array(apart))), outcomes[apart].tolist(), strict=True):
        is_accepted = None if ask.condition is None else ask.id in accepted
        about[ask.id] = ask.asked
        single[ask.id] = answer(ask, _reason(ask, outcome, is_accepted), is_accepted)
    return pa.concat_tables([*several, answers_of(single, about)])


def _reason(ask: Ask, outcome: int, is_accepted: bool | None) -> Reason:
    if outcome == CANCELLED and is_accepted is False:
        return Reason.ALREADY_CANCELLED
    # What would replace it only if it waits comes too late as well.
    is_left = outcome == DELIVERED and is_accepted is False
    return Reason.HANDED_OVER if is_left else (_REASONS_TO_DELIVER if ask.delivers else _REASONS)[outcome]


def _same_answer(asks: pa.Table, outcome: int, undecided: Undecided) -> pa.Table:
    """Return the answer to each of `asks`, whose messages have the same `outcome`; or `undecided` in its place."""
    if outcome == HANDED_OVER:
        return undecided_asks(asks, undecided)
    if outcome == OLD:
        return undecided_asks(asks, undecided._replace(asked_ms=OLD_MS))
    return answers_to(asks, (_REASONS_TO_DELIVER if undecided.delivers else _REASONS)[outcome])


def _passed_on(asks: pa.Table, outcomes: npt.NDArray[np.int8], not_waiting: Ids, undecided: Undecided) -> pa.Table:
    """Return no answer to `asks` of messages that have a name, or `undecided` if the message before is handed over.

    A release process may have cancelled that one. Then it is answered here: a successor of that process may know
    nothing of it, and take it for delivered.
    """
    is_gone = among(asks, not_waiting)
    handed_over = [
        _same_answer(asks.filter(pa.array(is_gone & (outcomes == outcome))), outcome, undecided)
        for outcome in np.unique(outcomes[is_gone]).tolist()
    ]
    return pa.concat_tables([*handed_over, no_answers(asks.filter(pa.array(~is_gone)))])
