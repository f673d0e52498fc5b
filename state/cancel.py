"""Cancels and replacements: the headers that ask for them, and the answer, which goes to the results topic.

A record with the header `CANCEL_HEADER` is an *ask*. It is accepted as a message that goes to the results topic at
once, with the id that it asks for as its key. So it is in order, handed over and released like any message, exactly
once. Its value, the *answer*, is filled in when its batch has decided (`streaming.job.cancels`).

A record with the header `REPLACES_HEADER` is a *replacement*. It is accepted as two messages with the same id: itself,
without these headers, and an ask for the message that it replaces. Until the ask is answered, its value has the
condition of the replacement and its due time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import InvariantViolated
from state.message_ids import ID, Ids, ids_in, parse_id

# On a record of an input topic: the id of the message to cancel, `topic/partition/offset`.
CANCEL_HEADER = "delayline-cancel"
# The id of the message that the record replaces, and the condition: one of `CONDITIONS`, the first by default.
REPLACES_HEADER, CONDITION_HEADER = "delayline-replaces", "delayline-if"
WAITING, ALWAYS = CONDITIONS = ("waiting", "always")

Result = Literal["cancelled", "too-late", "unknown"]
MessageId = tuple[str, int, int]


class Ask(NamedTuple):
    """An ask: its own id, and the id that it asks for.

    Of a replacement also its condition, one of `CONDITIONS`, and when it is due, epoch ms. It has the id of its ask.
    """

    id: MessageId
    asked: MessageId
    condition: str | None = None
    deliver_at_ms: int | None = None


# Asks without what the publisher sent along.
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
    ]
)
_ASK_ID = tuple(f"ask_{name}" for name in ID)


def is_ask(messages: pa.Table, results: str) -> pa.Array:
    """Return which of `messages` are asks, or answers to them. `results` is the results topic; "" is none."""
    to_results = pc.equal(messages.column("output_topic"), results)
    return pc.and_(to_results, pc.is_null(messages.column("error_code")))


def goes_on_at_once(messages: pa.Table, results: str) -> pa.Array:
    """Return which of `messages` the batch that accepts them hands over, whenever they are due.

    These are dead letters, and asks: an ask is decided by the batch that reads it.
    """
    return pc.or_(pc.is_valid(messages.column("error_code")), is_ask(messages, results))


def asks_in(messages: pa.Table, results: str) -> pa.Table:
    """Return the asks among `messages`, as a table of `ASK_SCHEMA`."""
    named = is_ask(messages, results)
    # Nearly always: to filter a dozen columns takes longer than to look.
    if not results or not pc.any(named).as_py():
        return ASK_SCHEMA.empty_table()
    own = messages.filter(named)
    asked = [parse_id(key.decode()) for key in own.column("key").to_pylist()]
    terms = [_parse_terms(value) for value in own.column("value").to_pylist()]
    columns = [*_columns(asked, 3), *(own.column(name) for name in ID), *_columns(terms, 2)]
    return pa.table(
        [
            pa.array(column, field.type) if isinstance(column, tuple) else column
            for column, field in zip(columns, ASK_SCHEMA, strict=True)
        ],
        schema=ASK_SCHEMA,
    )


def asks_of(table: pa.Table) -> list[Ask]:
    """Return the asks of a table that has the columns of `ASK_SCHEMA`."""
    asked, own = (zip(*(table.column(name).to_pylist() for name in names), strict=True) for names in (ID, _ASK_ID))
    terms = (table.column(name).to_pylist() for name in ("condition", "deliver_at_ms"))
    return list(map(Ask, own, asked, *terms))


def replacement_ids(asks: pa.Table) -> Ids:
    """Return the ids of the replacements among `asks`, a table that has the columns of `ASK_SCHEMA`."""
    own = asks.filter(pc.is_valid(asks.column("condition")))
    return ids_in(own.select(_ASK_ID).rename_columns(ID))


def replacing(asked: str, condition: str) -> list[tuple[str, bytes]]:
    """Return the headers of a message that replaces the one with the id `asked`."""
    return [(REPLACES_HEADER, asked.encode()), (CONDITION_HEADER, condition.encode())]


def terms_of(condition: str, deliver_at_ms: int) -> bytes:
    """Return what the value of a replacement's ask has until it is answered."""
    return f"{condition} {deliver_at_ms}".encode()


def accepted_replacements(asks: Iterable[Ask], cancelled: Collection[MessageId]) -> set[MessageId]:
    """Return the ids of the replacements among all `asks` of a batch that the batch accepts.

    `cancelled` are the messages that the batch takes out. The first ask for one, by the order of its id, has cancelled
    it. A replacement on the condition `WAITING` is accepted if it has cancelled a message. If that is a replacement of
    the same batch, it must have been accepted itself.
    """
    in_order = sorted(asks, key=lambda ask: ask.id)
    first: dict[MessageId, MessageId] = {}
    for ask in in_order:
        if ask.asked in cancelled:
            first.setdefault(ask.asked, ask.id)
    replacements = {ask.id: ask for ask in in_order if ask.condition is not None}
    accepted: dict[MessageId, bool] = {}
    for start in replacements:
        # What a replacement depends on is followed to where it is known; round a circle nobody is accepted.
        chain: list[MessageId] = []
        at, known = start, True
        while at in replacements and at not in accepted:
            chain.append(at)
            # In case that the chain comes back.
            accepted[at] = False
            ask = replacements[at]
            if ask.condition == ALWAYS or first.get(ask.asked) != at:
                known = ask.condition == ALWAYS
                accepted[chain.pop()] = known
                break
            at = ask.asked
        else:
            known = accepted.get(at, True)
        accepted |= dict.fromkeys(chain, known)
    return {each for each, was in accepted.items() if was}


def answer(ask: Ask, result: Result, why: str | None = None, accepted: bool | None = None) -> bytes:
    """Return the value of an answer, a JSON object. `accepted` says what became of a replacement."""
    fields: dict[str, str | bool] = {"id": _text(ask.asked), "result": result}
    if accepted is not None:
        fields |= {"replacement": _text(ask.id), "accepted": accepted}
    return json.dumps(fields if why is None else fields | {"why": why}, ensure_ascii=False).encode()


def answered(messages: pa.Table, results: str, answers: Mapping[MessageId, bytes]) -> pa.Table:
    """Return `messages` with the answer of each ask as its value. `answers` are by the id of the ask.

    Raises InvariantViolated if one is missing.
    """
    rows = np.flatnonzero(np.asarray(is_ask(messages, results)))
    if not len(rows):
        return messages
    ids = zip(*(messages.column(name).take(pa.array(rows)).to_pylist() for name in ID), strict=True)
    try:
        values = [answers[each] for each in ids]
    except KeyError as missing:
        raise InvariantViolated(f"the cancel {missing} is handed over without an answer") from None
    mask = np.zeros(messages.num_rows, dtype=bool)
    mask[rows] = True
    column = messages.column("value").combine_chunks()
    filled = pc.replace_with_mask(column, pa.array(mask), pa.array(values, column.type))
    return messages.set_column(messages.schema.get_field_index("value"), messages.schema.field("value"), filled)


def _text(identity: MessageId) -> str:
    return "/".join(map(str, identity))


def _parse_terms(value: bytes | None) -> tuple[str, int] | tuple[None, None]:
    if value is None:
        return None, None
    condition, deliver_at = value.decode().split()
    return condition, int(deliver_at)


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[tuple[object, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width
