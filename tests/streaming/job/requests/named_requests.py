"""Requests by names, and the decisions of a request desk about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from conf.settings import Settings
from state.answers import Undecided
from state.buckets.cancelled import cancelled_rows
from state.cancel import ALWAYS, NOTHING, REQUEST_SCHEMA, MessageId, requests_of
from state.checkpoint.progress import BatchSpan
from state.kinds import REQUEST
from state.names import NAMED_SCHEMA, name_rows
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from streaming.job.requests.names import LookedUp
from tests.streaming.job.requests.desk_bench import (
    ASKED_SCHEMA,
    CLOCK_MS,
    TOPIC,
    asked_rows,
    hash_of,
    name_of,
    output_of,
    span,
)
from tests.streaming.job.requests.memory_table import MemoryTable

# Due far after the cutoff, unless a test says otherwise.
FAR_MS = 70_000
# A request by a name: the offset of its record, the name, and when its message is due; None: it is a cancel.
Given = tuple[int, str, int | None]


def requests_for(*given: Given, mode: str = ALWAYS, published_ms: int = 0, wants_answer: bool = False) -> pa.Table:
    """Return a request by name (`REQUEST_SCHEMA`) for each of `given`: a cancel, or a message with `mode`."""
    rows = [
        (
            *(*NOTHING, TOPIC, 0, offset, None if due is None else mode, due, hash_of(name)),
            *(published_ms, wants_answer, False, False),
        )
        for offset, name, due in given
    ]
    return pa.Table.from_pylist(
        [dict(zip(REQUEST_SCHEMA.names, row, strict=True)) for row in rows], schema=REQUEST_SCHEMA
    )


def place(offset: int) -> MessageId:
    """Return the id of the message at `offset`."""
    return TOPIC, 0, offset


def decide(
    store: MemoryTable,
    *given: Given,
    of: BatchSpan | None = None,
    clock_ms: int = CLOCK_MS,
    found: Iterable[int] = (),
    desk: RequestDesk | None = None,
    not_found: Iterable[int] = (),
    **terms: Any,
) -> tuple[dict[int, Any], Decision]:
    """Return the answer to each request that gets one, and the decision. A request that goes on has its new key.

    The messages `found` are asked for by their ids as well, and the state stage has taken them out. The messages
    `not_found` are asked for too, but it had none of them. `desk` decides, or by default a new one that knows only the
    table. `terms` are passed to `requests_for`.
    """
    by_id = [(*place(offset), "asks", 1, offset, *[None] * 5, False, False) for offset in (*found, *not_found)]
    requests = [dict(zip(REQUEST_SCHEMA.names, row, strict=True)) for row in by_id]
    asked = pa.concat_tables([requests_for(*given, **terms), pa.Table.from_pylist(requests, schema=REQUEST_SCHEMA)])
    dues = {offset: due for offset, _, due in given}
    found_due_ms = [*[None] * len(given), *(dues.get(offset, FAR_MS) for offset in found), *(None for _ in not_found)]
    asked = asked.append_column(ASKED_SCHEMA.field("found_due_ms"), pa.array(found_due_ms, pa.int64()))
    frame, rows = output_of(store, asked_rows(asked))
    desk = desk or desk_of(store)
    decision = desk.decide(frame, rows, of or span(), clock_ms)
    answers: dict[int, Any] = {}
    to_names = [answer for answer in decision.answers.to_pylist() if answer["topic"] == TOPIC]
    for answer in to_names:
        value, key = answer["value"], answer["key"]
        if value is not None:
            is_open = answer["kind"] == REQUEST
            answers[answer["offset"]] = ("goes on", key.decode()) if is_open else json.loads(value)
            if is_open:
                assert Undecided.from_bytes(value).due_before_ms == (of or span()).cutoff_ms
    assert {answer["offset"] for answer in to_names} == {offset for offset, _, _ in given}
    return answers, decision


def desk_of(store: Any, **options: Any) -> RequestDesk:
    """Return a request desk with the table `store`."""
    return RequestDesk(store, Settings(), **options)


def store_of(store: MemoryTable, number: int, decision: Decision) -> None:
    """Store the decision of the batch of bucket `number`."""
    tables = [cancelled_rows(decision.cancelled, number), name_rows(decision.names, number)]
    store.append(pa.concat_tables(tables), "checkpoint", number)


def name(store: MemoryTable, number: int, until_ms: int = 0, keeps: bool = False, **given: tuple[int, int]) -> None:
    """Store names that the batch of bucket `number` has given: offset and due time, by name.

    The rows are of use until then, or until `until_ms`.
    """
    rows = [
        {"name": hash_of(each), **dict(zip(("topic", "partition", "offset"), place(offset), strict=True)),
         "deliver_at_ms": due, "until_ms": max(due, until_ms), "keeps": keeps}
        for each, (offset, due) in given.items()
    ]  # fmt: skip
    store.append(name_rows(pa.Table.from_pylist(rows, NAMED_SCHEMA), number), "checkpoint", number)


def holders(decision: Decision) -> dict[str, int]:
    """Return the offset of the message that each stored name is for."""
    rows = zip(decision.names.column("name").to_pylist(), decision.names.column("offset").to_pylist(), strict=True)
    return {name_of(name): offset for name, offset in rows}


def asked_in(names: LookedUp) -> dict[int, int]:
    """Return the offset of the message that each request is for, by the offset of its record; -1 for none."""
    return {request.id[2]: request.asked[2] for request in requests_of(names.requests)}


def kept(names: pa.Table) -> dict[str, tuple[int, bool]]:
    """Return the rows of names that are stored: the offset of the message, and whether it keeps the name."""
    return {name_of(row["name"]): (row["offset"], row["keeps"]) for row in names.to_pylist()}
