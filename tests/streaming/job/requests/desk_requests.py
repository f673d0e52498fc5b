"""Requests for messages by their ids, and the decisions of a request desk about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from conf.settings import Settings
from state.answers import Undecided
from state.buckets.cancelled import cancelled_rows
from state.buckets.operator import KEPT
from state.cancel import MessageId
from state.checkpoint.progress import BatchSpan
from state.kinds import ANSWER
from state.message_ids import parse_id
from streaming.job.requests.decision import Decision
from streaming.job.requests.desk import RequestDesk
from tests.messages import cancelled as cancelled_table
from tests.streaming.job.requests.desk_bench import (
    ASKED_SCHEMA,
    CLOCK_MS,
    TOPIC,
    CancelledId,
    Table,
    asked_rows,
    each_of,
    output_of,
    span,
)

# The counts of kept messages that a shard's own group and its overflow group report.
OVERFLOW: list[dict[str, Any]] = [{"kind": KEPT, "shard": 1, "count": 3}, {"kind": KEPT, "shard": 1}]
# When the messages are due that the state stage has taken out.
FOUND_MS = 80_000


def answers_in(decision: Decision) -> dict[MessageId, dict[str, Any]]:
    """Return the content of each answer of a decision, by request."""
    return {row[:3]: _content(row) for row in zip(*(c.to_pylist() for c in decision.answers.columns), strict=True)}


def _content(answer: tuple[Any, ...]) -> dict[str, Any]:
    if answer[5] == ANSWER:
        return dict(json.loads(answer[3]))
    of_message = {"replacement": "/".join(map(str, answer[:3])), "accepted": True}
    return {"result": "undecided"} | (of_message if Undecided.from_bytes(answer[3]).replaces else {})


def cancel(store: Table, number: int, *cancelled: CancelledId) -> None:
    """Store the messages that the batch of bucket `number` cancels."""
    table = cancelled_table((*each.id, *each[1:]) for each in cancelled)
    store.append(cancelled_rows(table, number), "checkpoint", number)


def desk_of(store: Any, **options: Any) -> RequestDesk:
    """Return a request desk with the table `store`."""
    return RequestDesk(store, Settings(), **options)


def _due_ms(is_found: bool) -> int | None:
    return FOUND_MS if is_found else None


def ask_row(asked: MessageId, own: MessageId) -> dict[str, Any]:
    """Return the row of `ASKED_SCHEMA` for a request. Missing values are null."""
    return dict(zip(ASKED_SCHEMA.names[:6], (*asked, *own), strict=True)) | {"delivers": False}


def decide(
    store: Table, *asked: int | str, found: Iterable[int] = (), of: BatchSpan | None = None, **more: Any
) -> tuple[dict[int | str, str], list[CancelledId]]:
    """Return the result for each offset, or whole id, and the cancelled messages."""
    ids = [(TOPIC, 0, each) if isinstance(each, int) else parse_id(each) for each in asked]
    requests = [
        {**ask_row(each, ("asks", 1, at)), "found_due_ms": _due_ms(each[2] in found)} for at, each in enumerate(ids)
    ]
    asked_for = asked_rows(pa.Table.from_pylist(requests, schema=ASKED_SCHEMA))
    frame, rows = output_of(store, [*asked_for, *more.get("rows", ())])
    decision = desk_of(store).decide(frame, rows, of or span(), CLOCK_MS)
    by_request = answers_in(decision)
    assert by_request.keys() == {("asks", 1, at) for at in range(len(requests))}
    answers = [by_request["asks", 1, at] for at in range(len(requests))]
    for answer, each in zip(answers, ids, strict=True):
        assert answer["result"] == "undecided" or answer["id"] == "/".join(map(str, each))
    return dict(zip(asked, (answer["result"] for answer in answers), strict=True)), each_of(decision.cancelled)


def replace(
    store: Table,
    *asked: tuple[int, int, str],
    found: Iterable[int] = (),
    rows: Iterable[dict[str, Any]] = (),
    of: BatchSpan | None = None,
) -> tuple[list[tuple[str, bool]], Decision]:
    """Return result and acceptance for each replacement, given as its offset, the replaced offset, and condition."""
    requests = [
        ask_row((TOPIC, 0, old), (TOPIC, 0, own))
        | {"condition": condition, "deliver_at_ms": 70_000, "found_due_ms": _due_ms(old in found)}
        for own, old, condition in asked
    ]
    frame, output = output_of(store, [*asked_rows(pa.Table.from_pylist(requests, schema=ASKED_SCHEMA)), *rows])
    decision = desk_of(store).decide(frame, output, of or span(), CLOCK_MS)
    answers = [answers_in(decision)[TOPIC, 0, own] for own, _, _ in asked]
    assert [answer["replacement"] for answer in answers] == [f"{TOPIC}/0/{own}" for own, _, _ in asked]
    return [(answer["result"], answer["accepted"]) for answer in answers], decision


def asked_for(store: Table, *offsets: int) -> tuple[Any, list[Any]]:
    """Return rows of the state stage with a cancel for each of `offsets`, as `output_of` does."""
    requests = [ask_row((TOPIC, 0, at), ("asks", 1, at)) for at in offsets]
    return output_of(store, asked_rows(pa.Table.from_pylist(requests, schema=ASKED_SCHEMA)))
