"""Cancels, replacements and delivery at once: their headers, and the requests that these make.

A record with the header `CANCEL_HEADER`, or `DELIVER_NOW_HEADER`, is a `Request`. It is accepted like a message that
goes to the results topic at once, with the requested id as its key. So it is ordered, staged and released like any
message, exactly once. Its kind is `REQUEST` (`state.kinds`) until its value, the *answer*, is filled in. Its batch
decides that (`streaming.job.requests.decision`), or a release process (`state.answers`).

A record with the header `REPLACES_HEADER` is a *replacement*. It is accepted as two messages with the same id: itself,
without these headers, and a request for the message that it replaces.

A record that has a *name* (`state.names`) is also a replacement, for any message that waits under the name. The batch
finds out which message that is (`streaming.job.requests.names`). Until then, the request is for `NOTHING`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.kinds import Mask, is_message
from state.message_ids import ID, ID_SCHEMA, Ids, contains_mask, ids_from_texts, ids_in

# On a record of an input topic: the id of the message to cancel, `topic/partition/offset`.
CANCEL_HEADER = "delayline-cancel"
# On a record of an input topic: the id of the message that shall be due at once.
DELIVER_NOW_HEADER = "delayline-deliver-now"
# The id of the message that the record replaces, and the condition: one of `CONDITIONS`, the first by default.
REPLACES_HEADER, CONDITION_HEADER = "delayline-replaces", "delayline-if"
WAITING, ALWAYS = CONDITIONS = ("waiting", "always")
# The operator, on a request or a replacement by `delayline web`. The answer has it. A delivered message never does.
OPERATOR_HEADER = "delayline-operator"

MessageId = tuple[str, int, int]
# An id that no message has. A request by a name has it until the batch has looked up the name, and if nothing waits.
NOTHING: MessageId = ("", -1, -1)
# Stored in the row of a message that a batch has replaced or moved: the id of its replacement, or the due time (epoch
# ms) with which the batch has staged the message itself.
Successor = MessageId | int
# Messages that were cancelled for a replacement, and its id: none.
NONE_REPLACED: Mapping[MessageId, MessageId] = MappingProxyType({})


class Request(NamedTuple):
    """A request: its own id, and the id of the requested message.

    - `condition`: for a replacement, one of `CONDITIONS` or a mode of `state.names`. A replacement has the id of its
      request
    - `deliver_at_ms`: for a replacement, when it is due by its own headers, epoch ms
    - `name`: for a request by a name (`state.names.named`)
    - `published_ms`, `wants_answer`: for a message with a name, when it was published (epoch ms), and whether its
      publisher wants an answer
    - `delivers`: whether the requested message shall be due at once
    - `repeats`: whether the message that comes with the request repeats
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


# Requests, by the id of the requested message. As rows of messages, requests have this id as their key, and the headers
# that the publisher sent along. They have no value until their batch has decided: then it is the answer or `Undecided`.
REQUEST_SCHEMA = pa.schema(
    [
        *ID_SCHEMA,
        *(field.with_name(f"request_{field.name}") for field in ID_SCHEMA),
        ("condition", pa.string()),
        ("deliver_at_ms", pa.int64()),
        ("name", pa.binary()),
        ("published_ms", pa.int64()),
        ("wants_answer", pa.bool_()),
        ("delivers", pa.bool_()),
        ("repeats", pa.bool_()),
    ]
)
# The columns of `REQUEST_SCHEMA` with a request's own id.
REQUEST_ID = tuple(f"request_{name}" for name in ID)
_TERMS = ("condition", "deliver_at_ms", "name", "published_ms", "wants_answer", "delivers", "repeats")


def without_cancelled(messages: pa.Table, cancelled: Ids) -> pa.Table:
    """Return `messages` without the messages that have one of the ids `cancelled`."""
    return without_named(messages, contains_mask(messages, cancelled))


def without_named(messages: pa.Table, named: Mask) -> pa.Table:
    """Return `messages` without the messages in the mask `named`, which have the id of a cancelled message.

    A request stays, because the request of a cancelled replacement has the id of the replacement. So does a dead
    letter.
    """
    if not named.any():
        return messages
    return messages.filter(pa.array(~named | ~is_message(messages)))


def asked_by(requests: pa.Table) -> pa.Table:
    """Return the requested id (`ID`) and the own id (`REQUEST_ID`) of `requests`, which are rows of messages."""
    # Keys are ids that were parsed before.
    asked = ids_from_texts(requests.column("key").cast(pa.string()))
    return pa.table([*asked.columns, *(requests.column(name) for name in ID)], names=[*ID, *REQUEST_ID])


def requests_of(table: pa.Table) -> list[Request]:
    """Return the requests of a table that has the columns of `REQUEST_SCHEMA`."""
    asked, own = (zip(*(table.column(name).to_pylist() for name in names), strict=True) for names in (ID, REQUEST_ID))
    terms = (table.column(name).to_pylist() for name in _TERMS)
    return list(map(Request, own, asked, *terms))


def comes_with_message(requests: pa.Table) -> Mask:
    """Return which of `requests` (`REQUEST_SCHEMA`) come with a message, which has their id."""
    return np.asarray(pc.is_valid(requests.column("condition")))


def is_undecided(requests: pa.Table) -> Mask:
    """Return for which of `requests` (`REQUEST_SCHEMA`) the state stage leaves the message to the batch's decision.

    It cancels the messages of all others for good.
    """
    return np.asarray(requests.column("delivers"))


def in_vain(requests: pa.Table, repeating: Ids) -> Mask:
    """Return which of `requests` (`REQUEST_SCHEMA`) are deliver-now requests for messages that repeat.

    Such a message keeps its time and its name.
    """
    return np.asarray(requests.column("delivers")) & contains_mask(requests, repeating)


def replacement_ids(requests: pa.Table) -> Ids:
    """Return the ids of the replacements among `requests` (`REQUEST_SCHEMA`)."""
    return ids_in(own_ids(requests.filter(pa.array(comes_with_message(requests)))))


def own_ids(requests: pa.Table) -> pa.Table:
    """Return the own ids of `requests` (`REQUEST_SCHEMA`), as a table with the columns `ID`."""
    return requests.select(REQUEST_ID).rename_columns(ID)


def undecided_ids(requests: pa.Table) -> Ids:
    """Return the ids of the messages that the state stage leaves undecided for `requests` (`REQUEST_SCHEMA`)."""
    return ids_in(requests.filter(pa.array(is_undecided(requests))))


def replacing(asked: str, condition: str) -> list[tuple[str, bytes]]:
    """Return the headers of a message that replaces the one with the id `asked`."""
    return [(REPLACES_HEADER, asked.encode()), (CONDITION_HEADER, condition.encode())]
