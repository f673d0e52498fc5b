"""The judge of cancels and replacements finds each kind of fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streaming.judge.cancels import Answers
from streaming.judge.record import Received

OLD, OTHER, ASK, NEW, LATE = (f"in/0/{offset}" for offset in range(5))
ASKS = {ASK: OLD, NEW: OTHER}
CONDITIONS = {NEW: "waiting"}
GOOD: dict[str, dict[str, Any]] = {ASK: {"id": OLD, "result": "cancelled"},
        NEW: {"id": OTHER, "result": "cancelled", "replacement": NEW, "accepted": True}}  # fmt: skip
REFUSED: dict[str, Any] = {"id": OTHER, "result": "too-late", "replacement": NEW, "accepted": False}


def problems(
    answers: dict[str, Any], came_out: set[str], conditions: dict[str, str] = CONDITIONS, asks: dict[str, str] = ASKS
) -> list[str]:
    records = [received(ask, content) for ask, content in answers.items()]
    return Answers.of(records).problems(asks, came_out, complete=True, conditions=conditions)


def received(ask: str, content: dict[str, Any]) -> Received:
    key = content.get("key", content.get("id", "")).encode()
    return Received("results", 0, 0, 0, key, json.dumps(content).encode(), (("delayline-id", ask.encode()),), 0)


def test_good_answers_have_no_problem() -> None:
    assert problems(GOOD, {NEW, LATE}) == []
    assert problems(GOOD | {NEW: REFUSED}, {OTHER}) == []
    assert problems(GOOD | {NEW: REFUSED | {"accepted": True}}, {OTHER, NEW}, {NEW: "always"}) == []


@pytest.mark.parametrize(
    ("answers", "came_out", "conditions", "problem"),
    [
        ({ASK: GOOD[ASK]}, {NEW}, CONDITIONS, "has no answer"),
        (GOOD | {LATE: GOOD[ASK]}, {NEW}, CONDITIONS, "asked for nothing"),
        (GOOD, {NEW, OLD}, CONDITIONS, "was answered to be cancelled"),
        (GOOD | {ASK: {"id": OLD, "result": "too-late"}}, {NEW}, CONDITIONS, "did not come out"),
        (GOOD | {ASK: {"id": OLD, "result": "maybe"}}, {NEW}, CONDITIONS, "has the answer"),
        (GOOD | {ASK: {"id": OTHER, "result": "cancelled"}}, {NEW}, CONDITIONS, "its answer is of"),
        (GOOD | {ASK: GOOD[ASK] | {"accepted": True}}, {NEW}, CONDITIONS, "replaces nothing"),
        (GOOD | {NEW: {"id": OTHER, "result": "cancelled"}}, {NEW}, CONDITIONS, "is a replacement"),
        (GOOD | {NEW: REFUSED}, {OTHER, NEW}, CONDITIONS, "not to be accepted"),
        (GOOD | {NEW: REFUSED}, {OTHER}, {NEW: "always"}, "always to be accepted"),
        (GOOD | {NEW: REFUSED | {"accepted": True}}, {OTHER, NEW}, CONDITIONS, "was not cancelled"),
    ],
)  # fmt: skip
def test_each_fault_is_found(
    answers: dict[str, Any], came_out: set[str], conditions: dict[str, str], problem: str
) -> None:
    found = problems(answers, came_out, conditions)
    assert any(problem in each for each in found), found


def test_a_message_that_is_replaced_twice_is_a_problem() -> None:
    answers = {ask: {"id": OTHER, "result": "cancelled", "replacement": ask, "accepted": True} for ask in (NEW, LATE)}
    asks, conditions = dict.fromkeys((NEW, LATE), OTHER), dict.fromkeys((NEW, LATE), "waiting")
    assert any("was replaced by" in each for each in problems(answers, {NEW, LATE}, conditions, asks))


def test_a_message_that_is_lost_with_its_replacement_is_a_problem() -> None:
    cancelled = REFUSED | {"result": "cancelled"}
    answers = GOOD | {NEW: cancelled}
    assert any(f"{OTHER} is cancelled, and everything" in each for each in problems(answers, set()))
    by_another = {**ASKS, LATE: OTHER}
    assert problems(answers | {LATE: {"id": OTHER, "result": "cancelled"}}, set(), CONDITIONS, by_another) == []
    chain, conditions = {**ASKS, LATE: NEW}, {**CONDITIONS, LATE: "waiting"}
    last = {"id": NEW, "result": "cancelled", "replacement": LATE, "accepted": True}
    assert problems(answers | {LATE: last}, {LATE}, conditions, chain) == []


def test_two_answers_to_one_ask_are_a_problem() -> None:
    records = [received(ASK, GOOD[ASK])] * 2
    assert Answers.of(records).problems({ASK: OLD}, set(), complete=True) == [f"{ASK} has 2 answers"]
