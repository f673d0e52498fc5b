"""The answers to the requests of a batch, once the outcomes of their messages are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.answers import OLD_MS, Undecided, answers_to, no_answers, undecided_requests
from state.cancel import ALWAYS, MessageId, comes_with_message, own_ids
from state.kinds import Mask
from state.message_ids import ID, Ids, contains_mask
from state.reasons import Reason, reasons_for


def answers_by(
    requests: pa.Table,
    outcome: npt.NDArray[Any],
    not_waiting: Ids,
    accepted: Ids,
    numbers: Mapping[MessageId, int],
    undecided: Undecided,
) -> pa.Table:
    """Return the answers to `requests` (`REQUEST_SCHEMA`), as a table of `ANSWER_SCHEMA`.

    Args:
        requests: the requests, by the id of a message.
        outcome: the outcome of the message of each request, as a `Reason`.
        not_waiting: the messages that the batch did not find, whatever the release processes have answered since.
        accepted: the replacements that are accepted.
        numbers: the messages that repeat, and the number of the occurrence that waited.
        undecided: takes the place of the answer if the release processes must decide.
    """
    delivers = np.asarray(requests.column("delivers"))
    has_message = comes_with_message(requests)
    # A message with a name is accepted or dropped in any case, and usually no answer is wanted. But if the message
    # before was staged, there is one: a release process may not know that another has recalled that message. A replay
    # has the same number of answers.
    is_quiet = has_message & np.asarray(pc.is_valid(requests.column("name")))
    is_quiet &= ~np.asarray(requests.column("wants_answer").fill_null(False))
    is_unwanted = is_quiet & ((outcome == Reason.NAME_KEPT) | ~contains_mask(requests, not_waiting))
    is_replacement = has_message & ~is_quiet
    # A replacement that is accepted in any case may still take the place of a staged message.
    may_go_on = ~is_replacement | np.asarray(pc.equal(requests.column("condition"), ALWAYS).fill_null(False))
    is_old = outcome == Reason.RECORD_DELETED
    goes_on = (is_old | (outcome == Reason.STAGED)) & may_go_on & ~is_unwanted
    is_accepted = contains_mask(own_ids(requests), accepted) | (outcome == Reason.NO_SUCH_NAME)
    decided = ~goes_on & ~is_unwanted
    terms = zip(*(each[goes_on].tolist() for each in (is_old, is_replacement, delivers)), strict=True)
    several = [
        undecided._replace(asked_ms=OLD_MS if old else undecided.asked_ms, replaces=replaces, delivers=delivering)
        for old, replaces, delivering in terms
    ]
    own = requests.filter(pa.array(decided))
    answered = answers_to(
        own,
        reasons_for(outcome, delivers, is_replacement & ~is_accepted)[decided],
        pa.array(is_accepted[decided], mask=~is_replacement[decided]),
        _occurrences(own, ((outcome == Reason.WITHDRAWN) & ~delivers)[decided], numbers) if numbers else None,
    )
    unwanted = no_answers(requests.filter(pa.array(is_unwanted)))
    return pa.concat_tables([answered, undecided_requests(requests.filter(pa.array(goes_on)), several), unwanted])


def _occurrences(requests: pa.Table, are_cancelled: Mask, numbers: Mapping[MessageId, int]) -> list[Mapping[str, int]]:
    """Return for each request the field of its answer with the last occurrence that came out, if it is cancelled."""
    ids = zip(*(requests.column(name).to_pylist() for name in ID), strict=True)
    return [
        {"occurrence": numbers[own] - 1} if is_it and own in numbers else {}
        for own, is_it in zip(ids, are_cancelled.tolist(), strict=True)
    ]
