"""Cancels: the header that asks for one, and its answer, which goes to the results topic.

A record with the header `CANCEL_HEADER` is an *ask*. It is accepted as a message that goes to the results topic at
once, with the id that it asks for as its key. So it is in order, handed over and released like any message, exactly
once. Its value, the *answer*, is filled in when its batch has decided (`streaming.job.cancels`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import InvariantViolated
from state.message_ids import ID, parse_id

# On a record of an input topic: the id of the message to cancel, `topic/partition/offset`.
CANCEL_HEADER = "delayline-cancel"

Result = Literal["cancelled", "too-late", "unknown"]
MessageId = tuple[str, int, int]

# Asks without what the publisher sent along: the id of the ask, and the id that it asks for.
ASK_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ask_topic", pa.string()),
        ("ask_partition", pa.int32()),
        ("ask_offset", pa.int64()),
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
    columns = [pa.array(column, field.type) for column, field in zip(_columns(asked), ASK_SCHEMA, strict=False)]
    columns += [own.column(name) for name in ID]
    return pa.table(columns, schema=ASK_SCHEMA)


def ask_ids(asks: pa.Table) -> list[MessageId]:
    """Return the id of each ask itself."""
    return list(zip(*(asks.column(name).to_pylist() for name in _ASK_ID), strict=True))


def asked_ids(asks: pa.Table) -> list[MessageId]:
    """Return the id that each ask asks for."""
    return list(zip(*(asks.column(name).to_pylist() for name in ID), strict=True))


def answer(asked: MessageId, result: Result, why: str | None = None) -> bytes:
    """Return the value of an answer, a JSON object."""
    topic, partition, offset = asked
    fields = {"id": f"{topic}/{partition}/{offset}", "result": result}
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


def _columns(ids: list[MessageId]) -> list[tuple[object, ...]]:
    return list(zip(*ids, strict=True)) if ids else [(), (), ()]
