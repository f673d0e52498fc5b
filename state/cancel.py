"""Cancels, replacements and delivery at once: the headers that ask for them, and what asks ask for.

A record with the header `CANCEL_HEADER`, or `DELIVER_NOW_HEADER`, is an *ask*. It is accepted like a message that goes
to the results topic at once, with the id that it asks for as its key. So it is in order, handed over and released like
any message, exactly once. Its kind is `REQUEST` (`state.kinds`) until its value, the *answer*, is filled in: when its
batch has decided (`streaming.job.requests.decision`), or a release process (`state.answers`).

A record with the header `REPLACES_HEADER` is a *replacement*. It is accepted as two messages with the same id: itself,
without these headers, and an ask for the message that it replaces.

A record that has a *name* (`state.names`) is a replacement too, of whatever waits under the name. Which message that is
the batch finds out (`streaming.job.requests.names`), so until then its ask asks for `NOTHING`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from state.kinds import Mask, is_message
from state.message_ids import ID, Ids, among, ids_from_texts, ids_in

# On a record of an input topic: the id of the message to cancel, `topic/partition/offset`.
CANCEL_HEADER = "delayline-cancel"
# On a record of an input topic: the id of the message that shall be due at once.
DELIVER_NOW_HEADER = "delayline-deliver-now"
# The id of the message that the record replaces, and the condition: one of `CONDITIONS`, the first by default.
REPLACES_HEADER, CONDITION_HEADER = "delayline-replaces", "delayline-if"
WAITING, ALWAYS = CONDITIONS = ("waiting", "always")
# Who asks, on an ask or a replacement of `delayline web`. The answer has it, and never what is delivered.
OPERATOR_HEADER = "delayline-operator"

MessageId = tuple[str, int, int]
# The id of no message: what an ask by a name asks for until the batch has looked the name up, and if nothing waits.
NOTHING: MessageId = ("", -1, -1)
# What stands in the stored row of a message that a batch has taken from where it waited, and not just cancelled: the id
# of its replacement; or the due time at which it was handed over itself, epoch ms.
Successor = MessageId | int
# Messages that were cancelled for a replacement, and its id: none.
NONE_REPLACED: Mapping[MessageId, MessageId] = MappingProxyType({})


class Ask(NamedTuple):
    """An ask: its own id, and the id that it asks for.

    Of a replacement also its condition, one of `CONDITIONS` or a mode of `state.names`, and when it is due by its own
    headers, epoch ms. It has the id of its ask. Of an ask by a name also the name (`state.names.named`). Of a message
    that has a name also when it was published, epoch ms, and whether its publisher wants an answer. `delivers` says
    that the message shall be due at once. `repeats` says that the message which comes with it does.
    """

    id: MessageId
    asked: MessageId
    condition: str | None = None
    deliver_at_ms: int | None = None
    name: bytes | None = None
    published_ms: int | None = None
    wants_answer: bool | None = None
    delivers: bool = False
    repeats: bool = False


# What asks ask for. As rows of messages, asks have that as their key, the headers that the publisher sent along, and no
# value until their batch has decided: then it is the answer, or `Undecided`.
ASK_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ask_topic", pa.string()),
        ("ask_partition", pa.int32()),
        ("ask_offset", pa.int64()),
        ("condition", pa.string()),
        ("deliver_at_ms", pa.int64()),
        ("name", pa.binary()),
        ("published_ms", pa.int64()),
        ("wants_answer", pa.bool_()),
        ("delivers", pa.bool_()),
        ("repeats", pa.bool_()),
    ]
)
# The columns of `ASK_SCHEMA` with the own id of an ask.
ASK_ID = tuple(f"ask_{name}" for name in ID)
_TERMS = ("condition", "deliver_at_ms", "name", "published_ms", "wants_answer", "delivers", "repeats")


def without_cancelled(messages: pa.Table, cancelled: Ids) -> pa.Table:
    """Return `messages` but for those that have one of the ids `cancelled`."""
    return without_named(messages, among(messages, cancelled))


def without_named(messages: pa.Table, named: Mask) -> pa.Table:
    """Return `messages` but for those whose id is `named` as that of a cancelled message.

    An ask stays, since that of a cancelled replacement has the id of the replacement; and so does a dead letter.
    """
    if not named.any():
        return messages
    return messages.filter(pa.array(~named | ~is_message(messages)))


def asked_by(asks: pa.Table) -> pa.Table:
    """Return for each of `asks`, which are messages, the id that it asks for (`ID`), and its own as of `ASK_SCHEMA`."""
    # Keys are ids that were parsed before.
    asked = ids_from_texts(asks.column("key").cast(pa.string()))
    return pa.table([*asked.columns, *(asks.column(name) for name in ID)], names=[*ID, *ASK_ID])


def asks_of(table: pa.Table) -> list[Ask]:
    """Return the asks of a table that has the columns of `ASK_SCHEMA`."""
    asked, own = (zip(*(table.column(name).to_pylist() for name in names), strict=True) for names in (ID, ASK_ID))
    terms = (table.column(name).to_pylist() for name in _TERMS)
    return list(map(Ask, own, asked, *terms))


def replacement_ids(asks: pa.Table) -> Ids:
    """Return the ids of the replacements among `asks`, a table that has the columns of `ASK_SCHEMA`."""
    return ids_in(own_ids(asks.filter(pc.is_valid(asks.column("condition")))))


def own_ids(asks: pa.Table) -> pa.Table:
    """Return the own ids of `asks`, a table that has the columns of `ASK_SCHEMA`, as one with the columns `ID`."""
    return asks.select(ASK_ID).rename_columns(ID)


def delivering_ids(asks: pa.Table) -> Ids:
    """Return the ids that those of `asks`, a table that has the columns of `ASK_SCHEMA`, want to be due at once."""
    return ids_in(asks.filter(asks.column("delivers")))


def replacing(asked: str, condition: str) -> list[tuple[str, bytes]]:
    """Return the headers of a message that replaces the one with the id `asked`."""
    return [(REPLACES_HEADER, asked.encode()), (CONDITION_HEADER, condition.encode())]
