"""Looking names up: which message each ask by a name asks for.

In the order of their ids, each record with a name asks for the message before it: the last one of its batch, or else
the one that got the name in an earlier batch, by the table. What comes of that is decided as for any other ask
(`streaming.job.cancels`). A message that another message, or a cancel, of its own batch asks for is never handed over.

A replay finds the same: it leaves out what its own batch has stored. So does the first batch after a rebuild, of which
a lost batch may have stored names: these messages are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from state.buckets.cancelled import CANCELLED_SCHEMA
from state.cancel import ASK_SCHEMA, NOTHING, Ask, MessageId, asks_of
from state.checkpoint.progress import BatchSpan
from state.names import NAMED_SCHEMA
from streaming.job.stored_ids import StoredIds


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
    - `names`: the messages that have the names from now on (`NAMED_SCHEMA`)
    - `held`: messages of earlier batches that are sealed and wait, unless they were cancelled (`CANCELLED_SCHEMA`).
      What has a name is never in a mutable bucket.
    - `handed_over`: those that are handed over (`CANCELLED_SCHEMA`)
    """

    asks: pa.Table
    superseded: pa.Table
    names: pa.Table
    held: pa.Table
    handed_over: pa.Table


def look_up(asks: pa.Table, stored: StoredIds, span: BatchSpan, clock_ms: int) -> LookedUp:
    """Look up the names of `asks`, which all have one, for the batch of `span`. `clock_ms` is the batch's clock."""
    rows = stored.named_among(asks.column("name").to_pylist(), clock_ms)
    known = {
        name: Holder((topic, partition, offset), deliver_at_ms, until_ms)
        for name, topic, partition, offset, deliver_at_ms, until_ms in zip(
            *(column.to_pylist() for column in rows.columns), strict=True
        )
    }
    return in_turn(asks, known, max(span.previous_ms, span.origin.cutoff_ms), clock_ms)


def in_turn(asks: pa.Table, known: Mapping[bytes, Holder], previous_ms: int, clock_ms: int) -> LookedUp:
    """Return what each of `asks` asks for.

    `known` are the messages of earlier batches, by name. What is due before `clock_ms` is delivered, or about to be,
    and its name is free. What is due before `previous_ms` is handed over. Both are epoch ms.
    """
    # By name: the message that has it, and that message's ask as long as it is one of the batch and waits.
    holders: dict[bytes, tuple[MessageId, Ask | None]] = {}
    for name, holder in known.items():
        holders[name] = (holder.id if holder.deliver_at_ms >= clock_ms else NOTHING), None
    asked: list[Ask] = []
    superseded: list[Ask] = []
    for ask in sorted(asks_of(asks), key=lambda ask: ask.id):
        assert ask.name is not None
        holder_id, waiting = holders.get(ask.name, (NOTHING, None))
        asked.append(ask._replace(asked=holder_id))
        if waiting is not None:
            superseded.append(waiting)
        holders[ask.name] = (holder_id, None) if ask.deliver_at_ms is None else (ask.id, ask)
    given = [_row(ask, known.get(name)) for name, (_, ask) in holders.items() if ask is not None]
    of_use = [row for row in given if row[-1] >= clock_ms]
    held, handed_over = (
        _table(
            [
                (*each.id, *[each.deliver_at_ms] * 2)
                for each in known.values()
                if (each.deliver_at_ms >= previous_ms) == waits
            ],
            CANCELLED_SCHEMA,
        )
        for waits in (True, False)
    )
    return LookedUp(_ask_table(asked), _messages(superseded), _table(of_use, NAMED_SCHEMA), held, handed_over)


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
    return _table(rows, ASK_SCHEMA)


def _messages(asks: Iterable[Ask]) -> pa.Table:
    return _table([(*ask.id, ask.deliver_at_ms, ask.deliver_at_ms) for ask in asks], CANCELLED_SCHEMA)


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
