"""The answers to a batch's asks, once it is known what became of the messages that they ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.answers import OLD_MS, Undecided, answers_to, no_answers, undecided_asks
from state.cancel import ALWAYS, MessageId, asks_of, own_ids
from state.message_ids import ID, Ids, among, ids_in, ids_of
from state.reasons import Reason
from streaming.job.requests.outcomes import CANCELLED, DELIVERED, HANDED_OVER, NO_INPUT, OLD, UNREAD, Outcomes

Mask = npt.NDArray[np.bool_]
# By outcome. Of none is an ask open.
_REASONS = np.full(7, None, dtype=object)
_REASONS[[CANCELLED, DELIVERED, HANDED_OVER]] = Reason.WITHDRAWN, Reason.RELEASED, Reason.HANDED_OVER
_REASONS[[OLD, UNREAD, NO_INPUT]] = Reason.RECORD_DELETED, Reason.NOT_READ, Reason.NO_INPUT_TOPIC


def answers_by(outcomes: Outcomes, asks: pa.Table, not_waiting: Ids, accepted: Ids, undecided: Undecided) -> pa.Table:
    """Return the answers to `asks` (`ASK_SCHEMA`), as a table of `ANSWER_SCHEMA`.

    Args:
        outcomes: what became of each message that is asked for.
        asks: the asks, by the id of a message.
        not_waiting: the messages that the batch did not find, whatever the release processes have answered since.
        accepted: the replacements that are accepted.
        undecided: what takes the place of the answer if the release processes must decide.
    """
    comes_with_message = np.asarray(pc.is_valid(asks.column("condition")))
    # With a name, a message is accepted in any case, and mostly nobody wants an answer. But if the message before was
    # handed over, there is one: a release process may not know that another has recalled it. Of a replay, too, as many
    # go on.
    is_quiet = comes_with_message & np.asarray(pc.is_valid(asks.column("name"))) & ~_wants_answer(asks)
    is_unwanted = is_quiet & ~among(asks, not_waiting)
    outcome, delivers = outcomes.of(asks), np.asarray(asks.column("delivers"))
    is_replacement = comes_with_message & ~is_quiet
    # What is accepted in any case may still take the place of a message that is handed over.
    may_go_on = ~is_replacement | np.asarray(pc.equal(asks.column("condition"), ALWAYS).fill_null(False))
    goes_on = np.isin(outcome, (HANDED_OVER, OLD)) & may_go_on & ~is_unwanted
    is_accepted = among(own_ids(asks), accepted)
    is_refused = is_replacement & ~is_accepted
    reasons = _REASONS[outcome]
    reasons[(outcome == CANCELLED) & (delivers | is_refused)] = Reason.ALREADY_CANCELLED
    reasons[(outcome == DELIVERED) & delivers] = Reason.MADE_DUE
    # What would replace it only if it waits comes too late as well.
    reasons[(outcome == DELIVERED) & is_refused] = Reason.HANDED_OVER
    decided = ~goes_on & ~is_unwanted
    terms = zip(*(each[goes_on].tolist() for each in (outcome == OLD, is_replacement, delivers)), strict=True)
    several = [
        undecided._replace(asked_ms=OLD_MS if is_old else undecided.asked_ms, replaces=replaces, delivers=delivering)
        for is_old, replaces, delivering in terms
    ]
    return pa.concat_tables(
        [
            answers_to(
                asks.filter(pa.array(decided)),
                reasons[decided],
                pa.array(is_accepted[decided], mask=~is_replacement[decided]),
            ),
            undecided_asks(asks.filter(pa.array(goes_on)), several),
            no_answers(asks.filter(pa.array(is_unwanted))),
        ]
    )


def with_occurrences(
    answers: pa.Table, asks: pa.Table, cancelled: pa.Table, numbers: Mapping[MessageId, int]
) -> pa.Table:
    """Return `answers` (`ANSWER_SCHEMA`), with the last occurrence of messages that repeat and that the batch cancels.

    `asks` are those that are answered (`ASK_SCHEMA`), `cancelled` the messages (`CANCELLED_SCHEMA`), and `numbers` has
    the occurrence of each message that waited.
    """
    repeating = asks.filter(pa.array(among(asks, ids_of(numbers)) & among(asks, ids_in(cancelled))))
    last = {ask.id: numbers[ask.asked] - 1 for ask in asks_of(repeating)}
    if not last:
        return answers
    ids = zip(*(answers.column(name).to_pylist() for name in ID), strict=True)
    values = answers.column("value").to_pylist()
    for row, own in enumerate(ids):
        value = values[row]
        if own in last and value is not None and b'"result": "cancelled"' in value:
            content = json.loads(value) | {"occurrence": last[own]}
            values[row] = json.dumps(content, ensure_ascii=False).encode()
    at = answers.schema.get_field_index("value")
    return answers.set_column(at, answers.schema.field(at), pa.array(values, pa.large_binary()))


def answers_for_nothing(asks: pa.Table) -> pa.Table:
    """Return the answers to `asks` by a name that no message has: none to a message that wants none."""
    comes_with_message = np.asarray(pc.is_valid(asks.column("condition")))
    return _answered_alike(asks, Reason.NO_SUCH_NAME, ~comes_with_message | _wants_answer(asks), is_accepted=True)


def answers_for_repeating(asks: pa.Table, gone: Ids) -> pa.Table:
    """Return the answers to `asks` that messages which repeat be due at once. The batch cancels those `gone`."""
    is_gone = pa.array(among(asks, gone))
    several = ((Reason.REPEATS, asks.filter(pc.invert(is_gone))), (Reason.ALREADY_CANCELLED, asks.filter(is_gone)))
    return pa.concat_tables([answers_to(own, repeat(reason, own.num_rows)) for reason, own in several])


def answers_for_kept(dropped: pa.Table) -> pa.Table:
    """Return the answers to the asks of messages that are `dropped`, with the id of the one that keeps its name."""
    return _answered_alike(dropped, Reason.NAME_KEPT, _wants_answer(dropped), is_accepted=False)


def _answered_alike(asks: pa.Table, reason: Reason, is_answered: Mask, is_accepted: bool) -> pa.Table:
    """Return the same answer to all of `asks` for which `is_answered` is set, and none to the others."""
    own, others = asks.filter(pa.array(is_answered)), asks.filter(pa.array(~is_answered))
    accepted = pc.if_else(pc.is_valid(own.column("condition")), is_accepted, pa.scalar(None, pa.bool_()))
    return pa.concat_tables([answers_to(own, repeat(reason, own.num_rows), accepted), no_answers(others)])


def _wants_answer(asks: pa.Table) -> Mask:
    return np.asarray(asks.column("wants_answer").fill_null(False))
