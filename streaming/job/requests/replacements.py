"""Which replacements a batch accepts, and what asks want to be due at once: the first ask for a message decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.cancel import (
    ALWAYS,
    NONE_REPLACED,
    WAITING,
    Ask,
    MessageId,
    asks_of,
    first_delivered,
    own_ids,
    replacement_ids,
)
from state.message_ids import Ids, among, each_of, ids_in, ids_of, united, without


@dataclass(frozen=True)
class Replacements:
    """What becomes of the replacements of a batch, and of what asks want to be due at once.

    - `accepted`: the ids of replacements
    - `refused`: the others that the batch has not taken otherwise, as cancelled messages (`CANCELLED_SCHEMA`)
    - `replaced`: the accepted one, by the message that it has replaced; without those that have a name
    - `delivered`: the messages that are handed over at once: no replacement that is refused
    """

    accepted: Ids = field(default_factory=dict)
    refused: pa.Table = field(default_factory=CANCELLED_SCHEMA.empty_table)
    replaced: Mapping[MessageId, MessageId] = field(default_factory=lambda: NONE_REPLACED)
    delivered: Ids = field(default_factory=dict)

    @staticmethod
    def of(
        asks: pa.Table, dropped: pa.Table, taken: pa.Table, replaced_before: Mapping[MessageId, MessageId]
    ) -> Replacements:
        """Decide the replacements among `asks` (`ASK_SCHEMA`), and the asks for delivery at once.

        `dropped` are other asks: their messages replace nothing, and are not accepted. `taken` is what the batch takes
        from where it waits (`CANCELLED_SCHEMA`), and `replaced_before` what a lost batch has replaced.
        """
        found, dropped_ids = ids_in(taken), ids_in(own_ids(dropped))
        are_dropped = _as_cancelled(dropped, found)
        delivered = without(first_delivered(asks, found), dropped_ids)
        if asks.column("condition").null_count == asks.num_rows:
            return Replacements(refused=are_dropped, delivered=delivered)
        cancelled, every = each_of(without(found, delivered)), asks_of(asks)
        accepted = accepted_replacements(every, cancelled, replaced_before, each_of(dropped_ids))
        accepted_ids = ids_of(accepted)
        refused = _as_cancelled(asks.filter(pc.is_valid(asks.column("condition"))), united([found, accepted_ids]))
        return Replacements(
            accepted_ids,
            pa.concat_tables([refused, are_dropped]),
            replaced_by(every, cancelled, accepted),
            without(delivered, without(replacement_ids(asks), accepted_ids)),
        )


def _as_cancelled(asks: pa.Table, but: Ids) -> pa.Table:
    """Return the messages that `asks` came with (`CANCELLED_SCHEMA`), without those of `but`."""
    own, due = own_ids(asks), asks.column("deliver_at_ms")
    messages = pa.table([*own.columns, due, due], schema=CANCELLED_SCHEMA)
    return messages.filter(pa.array(~among(messages, but)))


def accepted_replacements(
    asks: Iterable[Ask],
    cancelled: Collection[MessageId],
    replaced: Mapping[MessageId, MessageId] = NONE_REPLACED,
    dropped: Collection[MessageId] = (),
) -> set[MessageId]:
    """Return the ids of the replacements among all `asks` of a batch that the batch accepts.

    `cancelled` are the messages that the batch has taken out. The ask for one with the lowest id counts as the cause.
    Of a message that a lost batch took out, `replaced` has the replacement that it accepted in its place. Messages that
    are `dropped` have no asks here, and are not accepted.

    A replacement on the condition `WAITING` is accepted if it has cancelled a message. If that is a replacement of the
    same batch, it must have been accepted itself: round a circle, nobody is.
    """
    every = list(asks)
    conditions = {ask.id: ask.condition for ask in every if ask.condition is not None}
    accepted = {own for own, condition in conditions.items() if condition == ALWAYS}
    # What the batch has taken out is there: another message may have the id, of a topic that was made anew.
    first = {**replaced, **_first_asks(every, cancelled)}
    left = {asked: own for asked, own in first.items() if conditions.get(own) == WAITING}
    accepted_before = (asked for asked in left if asked not in conditions and asked not in dropped)
    rest = [*accepted, *accepted_before]
    while rest:
        if (own := left.pop(rest.pop(), None)) is not None:
            accepted.add(own)
            rest.append(own)
    return accepted


def replaced_by(
    asks: Iterable[Ask], cancelled: Collection[MessageId], accepted: Collection[MessageId]
) -> dict[MessageId, MessageId]:
    """Return the messages among `cancelled` that a replacement has cancelled first, and the id of each one's.

    `accepted` are the replacements that the batch accepts. Without those that have a name: they are accepted in any
    case, whatever became of the message before.
    """
    every = list(asks)
    by_id = {ask.id for ask in every if ask.condition is not None and ask.name is None and ask.id in accepted}
    if not by_id:
        return {}
    return {asked: own for asked, own in _first_asks(every, cancelled).items() if own in by_id}


def _first_asks(asks: Iterable[Ask], cancelled: Collection[MessageId]) -> dict[MessageId, MessageId]:
    """Return the ask with the lowest id for each message that is `cancelled`, by the message's id."""
    first: dict[MessageId, MessageId] = {}
    for ask in asks:
        if ask.asked in cancelled:
            first[ask.asked] = min(ask.id, first.get(ask.asked, ask.id))
    return first
