"""Looking names up: which message each ask by a name asks for.

In the order of their ids, each record with a name asks for the message before it: the last one of its batch, or else
the one that got the name in an earlier batch, by the table. What comes of that is decided as for any other ask
(`streaming.job.requests.decision`). A message that another message, or a cancel, of its own batch asks for is never
handed over.

A message has its name until it is due, and after an outage until it is handed over: what was to come out meanwhile
waits in the table, and is cancelled like anything else that waits.

A replay finds the same: it leaves out what its own batch has stored. So does the first batch after a rebuild, of which
a lost batch may have stored names: these messages are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.cancel import ASK_SCHEMA, NOTHING, Ask, MessageId, asks_of
from state.checkpoint.progress import BatchSpan
from state.message_ids import Ids, each_of, ids_in, ids_of
from state.names import NAMED_SCHEMA
from streaming.job.requests.local_database import table_from
from streaming.job.requests.stored_ids import StoredIds


class Holder(NamedTuple):
    """The message that got a name last: its id, its due time, and until when its row is of use, both epoch ms."""

    id: MessageId
    deliver_at_ms: int
    until_ms: int


@dataclass(frozen=True)
class LookedUp:
    """The asks by a name of one batch, once the names are known.

    - `asks`: with the id that each asks for; `NOTHING` if no message has its name (`ASK_SCHEMA`)
    - `superseded`: messages of the batch that a later record of it asks for by their name (`CANCELLED_SCHEMA`)
    - `names`: the messages that have the names from now on, waiting or cancelled by name (`NAMED_SCHEMA`)
    - `held`: messages of earlier batches that are sealed and wait, unless they were cancelled (`CANCELLED_SCHEMA`).
      What has a name is never in a mutable bucket.
    - `handed_over`: those that are handed over (`CANCELLED_SCHEMA`)
    """

    asks: pa.Table
    superseded: pa.Table
    names: pa.Table
    held: pa.Table
    handed_over: pa.Table


def look_up(
    asks: pa.Table,
    stored: StoredIds,
    span: BatchSpan,
    clock_ms: int,
    waiting: Callable[[Ids], pa.Table],
) -> LookedUp:
    """Look up the names of `asks` for the batch of `span`.

    Args:
        asks: the asks by a name (`ASK_SCHEMA`).
        stored: the rows of earlier batches.
        span: the batch.
        clock_ms: its clock, epoch ms.
        waiting: returns which of some messages wait in the table (`CANCELLED_SCHEMA`).
    """
    previous_ms = span.handed_over_below_ms
    # A message that waits has its name although it is due.
    free_ms = min(clock_ms, previous_ms)
    # An earlier checkpoint may have left messages that are due before its last cutoff: the first batch hands them over.
    may_be_left = not span.batch_id
    rows = stored.named_among(asks.column("name").to_pylist(), 0 if may_be_left else free_ms)
    known = {
        name: Holder((topic, partition, offset), deliver_at_ms, until_ms)
        for name, topic, partition, offset, deliver_at_ms, until_ms in zip(
            *(column.to_pylist() for column in rows.columns), strict=True
        )
    }
    early = ids_of(holder.id for holder in known.values() if may_be_left and holder.deliver_at_ms < free_ms)
    found = in_turn(asks, known, previous_ms, free_ms, each_of(ids_in(waiting(early))) if early else ())
    # Batches to come ask for what is due from here on (`useful_from_ms`).
    return replace(found, names=found.names.filter(pc.field("until_ms") >= useful_from_ms(span, clock_ms)))


def useful_from_ms(span: BatchSpan, clock_ms: int) -> int:
    """Return the instant, epoch ms, before which rows of names are of no use once the batch of `span` is over.

    By then what is due before is handed over, and the clock, which reads `clock_ms` now, will not go back.
    """
    return min(clock_ms, span.cutoff_ms)


def in_turn(
    asks: pa.Table,
    known: Mapping[bytes, Holder],
    previous_ms: int,
    free_ms: int,
    overdue: Collection[MessageId] = (),
) -> LookedUp:
    """Return what each of `asks` asks for.

    `known` are the messages of earlier batches, by name. What is due before `free_ms` is delivered, or about to be, and
    its name is free, unless the message is one of `overdue`. What is due before `previous_ms` is handed over. Both are
    epoch ms.
    """
    # By name: the message that has it, and that message's ask as long as it is one of the batch and waits.
    holders: dict[bytes, tuple[MessageId, Ask | None]] = {}
    # Also if a cancel has taken it: who cancels again, in a later batch, gets the same answer.
    newest: dict[bytes, Ask] = {}
    for name, holder in known.items():
        has_name = holder.deliver_at_ms >= free_ms or holder.id in overdue
        holders[name] = (holder.id if has_name else NOTHING), None
    asked: list[Ask] = []
    superseded: list[Ask] = []
    for ask in sorted(asks_of(asks), key=lambda ask: ask.id):
        assert ask.name is not None
        holder_id, waiting = holders.get(ask.name, (NOTHING, None))
        if holder_id == ask.id:
            # Another message, of an input topic that was created again: what cancels one would cancel both.
            holder_id = NOTHING
        asked.append(ask._replace(asked=holder_id))
        if waiting is not None:
            superseded.append(waiting)
        holders[ask.name] = (holder_id, None) if ask.deliver_at_ms is None else (ask.id, ask)
        if ask.deliver_at_ms is not None:
            newest[ask.name] = ask
    given = [_row(ask, known.get(name)) for name, ask in newest.items()]
    held, handed_over = (
        table_from(
            [
                (*each.id, *[each.deliver_at_ms] * 2)
                for each in known.values()
                if (each.deliver_at_ms >= previous_ms) == waits
            ],
            CANCELLED_SCHEMA,
        )
        for waits in (True, False)
    )
    return LookedUp(_ask_table(asked), _messages(superseded), table_from(given, NAMED_SCHEMA), held, handed_over)


def _row(ask: Ask, before: Holder | None) -> tuple[bytes, str, int, int, int, int]:
    """Return the row of `NAMED_SCHEMA` for the message of `ask`.

    It is of use as long as that of the message before, which would be found in its place.
    """
    assert ask.name is not None
    assert ask.deliver_at_ms is not None
    until_ms = ask.deliver_at_ms if before is None else max(ask.deliver_at_ms, before.until_ms)
    return ask.name, *ask.id, ask.deliver_at_ms, until_ms


def _ask_table(asks: Iterable[Ask]) -> pa.Table:
    rows = [(*ask.asked, *ask.id, ask.condition, ask.deliver_at_ms, ask.name) for ask in asks]
    return table_from(rows, ASK_SCHEMA)


def _messages(asks: Iterable[Ask]) -> pa.Table:
    return table_from([(*ask.id, ask.deliver_at_ms, ask.deliver_at_ms) for ask in asks], CANCELLED_SCHEMA)
