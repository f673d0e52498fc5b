"""The values of answers."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from state.answers import Output, Undecided, answers_to, no_answers, undecided_requests
from state.cancel import NOTHING, REQUEST_ID, MessageId
from state.kinds import ANSWER, REQUEST
from state.message_ids import ID
from state.reasons import Reason
from tests.messages import answer_value

ASKED: MessageId = ("in", 3, 4)


def requests_for(*asked: MessageId) -> pa.Table:
    """Return requests for these messages, with the ids own/1/0, own/1/1, ..."""
    rows = [(*each, "own", 1, at) for at, each in enumerate(asked)]
    return pa.Table.from_pylist([dict(zip((*ID, *REQUEST_ID), row, strict=True)) for row in rows])


@pytest.mark.parametrize("reason", Reason)
def test_an_answer_says_what_its_reason_says(reason: Reason) -> None:
    expected = {"id": "in/3/4", "result": reason.result, "reason": reason.code}
    assert json.loads(answer_value(ASKED, reason)) == expected | ({"why": reason.why} if reason.why else {})


@pytest.mark.parametrize("topic", ["in", 'a"b', "a\\b", "\n\u2028", "\N{SNOWMAN}", "", "a/b"])
def test_each_text_that_a_stranger_asks_for_is_in_the_answer_as_it_was(topic: str) -> None:
    table = answers_to(requests_for((topic, 0, 1), ASKED, (topic, 2, 3)), [Reason.NO_INPUT_TOPIC] * 3)
    assert [json.loads(row["value"])["id"] for row in table.to_pylist()] == [f"{topic}/0/1", "in/3/4", f"{topic}/2/3"]
    assert [row["key"].decode() for row in table.to_pylist()] == [f"{topic}/0/1", "in/3/4", f"{topic}/2/3"]


def test_an_ask_for_nothing_keeps_its_key() -> None:
    (row,) = answers_to(requests_for(NOTHING), [Reason.NO_SUCH_NAME]).to_pylist()
    assert row["key"] is None
    assert json.loads(row["value"])["id"] is None


def test_each_answer_has_its_own_terms() -> None:
    accepted = pa.array([True, False, None])
    outputs = [{}, Output("dead").field(), Output("out", 1, (5, 9)).field()]
    reasons = [Reason.WITHDRAWN, Reason.RELEASED, Reason.RELEASED]
    table = answers_to(requests_for(ASKED, ASKED, ASKED), reasons, accepted, outputs)
    assert [(row["topic"], row["partition"], row["offset"], row["kind"]) for row in table.to_pylist()] == [
        ("own", 1, at, ANSWER) for at in range(3)
    ]
    released: dict[str, Any] = {"id": "in/3/4", "result": "too-late", "reason": "released", "why": Reason.RELEASED.why}
    assert [json.loads(row["value"]) for row in table.to_pylist()] == [
        {"id": "in/3/4", "result": "cancelled", "reason": "withdrawn", "replacement": "own/1/0", "accepted": True},
        released | {"replacement": "own/1/1", "accepted": False, "output": {"topic": "dead"}},
        released | {"output": {"topic": "out", "partition": 1, "offsets": [5, 9]}},
    ]


def test_what_is_undecided_or_unwanted_has_no_answer() -> None:
    terms = [Undecided(5, 6, 2, 1), Undecided(5, 6, 2, 1, delivers=True)]
    table = undecided_requests(requests_for(ASKED, ASKED), terms)
    assert [(Undecided.from_bytes(row["value"]), row["kind"]) for row in table.to_pylist()] == [
        (each, REQUEST) for each in terms
    ]
    assert no_answers(requests_for(ASKED)).column("value").to_pylist() == [None]
    for empty in (
        answers_to(requests_for(ASKED).slice(0, 0), []),
        undecided_requests(requests_for(ASKED).slice(0, 0), []),
    ):
        assert not empty.num_rows
