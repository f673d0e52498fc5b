"""The judge of cancels and replacements finds each kind of fault."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from state.reasons import RESULTS, Reason
from streaming.judge.cancels import Answers
from streaming.judge.reasons import Circumstances
from streaming.judge.record import ANY_ERROR, Published, Received

OLD, OTHER, ASK, NEW, LATE = (f"in/0/{offset}" for offset in range(5))
ASKS = {ASK: OLD, NEW: OTHER}
CONDITIONS = {NEW: "waiting"}
CANCELLED = {"result": "cancelled", "reason": "withdrawn"}
GOOD: dict[str, dict[str, Any]] = {ASK: CANCELLED | {"id": OLD},
        NEW: CANCELLED | {"id": OTHER, "replacement": NEW, "accepted": True}}  # fmt: skip
NO_INPUT, UNREAD, DELETED, NOT_REPLACED, UNSURE, LOST = (
    "no-input-topic", "not-read", "record-deleted", "staged", "undecided", "checkpoint-lost"
)  # fmt: skip
REFUSED = {"id": OTHER, "result": "unknown", "reason": NOT_REPLACED, "replacement": NEW, "accepted": False}
# In the same partition, before every request; in another one; and a bad one, which goes to the dead-letter topic.
MESSAGES = {
    each: Published(each, 0, None, None, (), "out", due_ms, error)
    for each, due_ms, error in ((OLD, 1_000, None), (OTHER, 1_000, None), ("in/1/0", 1_000, None), (ASK, 0, ANY_ERROR))
}
# A message due at 1,000 may have been staged by 400, and written to its topic by 900.
RUN = Circumstances(inputs=["in"], messages=MESSAGES, horizon_ms=600, written_ms=100)


def problems(
    answers: dict[str, Any],
    came_out: set[str],
    conditions: dict[str, str] = CONDITIONS,
    requests: dict[str, str] = ASKS,
) -> list[str]:
    records = [received(request, content) for request, content in answers.items()]
    return Answers.of(records).problems(requests, came_out, complete=True, circumstances=RUN, conditions=conditions)


def received(request: str, content: dict[str, Any]) -> Received:
    key = content.get("key", content.get("id", "")).encode()
    value, headers = json.dumps(content).encode(), (("delayline-id", request.encode()),)
    return Received("results", 0, 0, 0, key, value, headers, content.get("received_ms", 1_000))


def test_good_answers_have_no_problem() -> None:
    assert problems(GOOD, {NEW, LATE}) == []
    assert problems(GOOD | {NEW: REFUSED}, {OTHER}) == []
    late = REFUSED | {"accepted": True, "result": "too-late", "reason": "released"}
    assert problems(GOOD | {NEW: late}, {OTHER, NEW}, {NEW: "always"}) == []


@pytest.mark.parametrize(
    ("answers", "came_out", "conditions", "problem"),
    [
        ({ASK: GOOD[ASK]}, {NEW}, CONDITIONS, "has no answer"),
        (GOOD | {LATE: GOOD[ASK]}, {NEW}, CONDITIONS, "asked for nothing"),
        (GOOD, {NEW, OLD}, CONDITIONS, "was answered to be cancelled"),
        (GOOD | {ASK: {"id": OLD, "result": "too-late", "reason": "released"}}, {NEW}, CONDITIONS, "did not come out"),
        (GOOD | {ASK: {"id": OLD, "result": "maybe"}}, {NEW}, CONDITIONS, "has the answer"),
        (GOOD | {ASK: CANCELLED | {"id": OTHER}}, {NEW}, CONDITIONS, "its answer is of"),
        (GOOD | {ASK: {"id": OLD, "result": "cancelled"}}, {NEW}, CONDITIONS, "its reason does not explain: None"),
        (GOOD | {ASK: CANCELLED | {"id": OLD, "reason": "released"}}, {NEW}, CONDITIONS, "does not explain: released"),
        (GOOD | {ASK: CANCELLED | {"id": OLD, "reason": "because"}}, {NEW}, CONDITIONS, "does not explain: because"),
        (GOOD | {ASK: CANCELLED | {"id": OLD, "reason": "already-cancelled"}}, {NEW}, CONDITIONS, "cannot be true"),
        (GOOD | {NEW: GOOD[NEW] | {"reason": "already-cancelled"}}, {NEW}, CONDITIONS, "cannot be true"),
        (GOOD | {NEW: GOOD[NEW] | {"accepted": False}}, set(), CONDITIONS, "cannot be true: withdrawn"),
        (GOOD | {ASK: GOOD[ASK] | {"accepted": True}}, {NEW}, CONDITIONS, "replaces nothing"),
        (GOOD | {NEW: CANCELLED | {"id": OTHER}}, {NEW}, CONDITIONS, "is a replacement"),
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


def test_the_judge_takes_each_reason_for_one_of_the_result_that_it_has() -> None:
    # Those about names and about messages that repeat are judged elsewhere.
    for reason in set(Reason) - {Reason.NO_SUCH_NAME, Reason.NAME_KEPT, Reason.REPEATS}:
        for result in RESULTS:
            content = {"id": OLD, "result": result, "reason": reason.code}
            found = Answers.of([received(ASK, content)]).problems({ASK: OLD}, {OLD}, False, RUN)
            assert any("does not explain" in each for each in found) == (result != reason.result), content


def test_a_message_that_is_replaced_twice_is_a_problem() -> None:
    answers = {request: GOOD[NEW] | {"replacement": request} for request in (NEW, LATE)}
    requests, conditions = dict.fromkeys((NEW, LATE), OTHER), dict.fromkeys((NEW, LATE), "waiting")
    assert any("was replaced by" in each for each in problems(answers, {NEW, LATE}, conditions, requests))


def test_a_message_that_is_lost_with_its_replacement_is_a_problem() -> None:
    cancelled = REFUSED | {"result": "cancelled", "reason": "already-cancelled"}
    answers = GOOD | {NEW: cancelled}
    assert any(f"{OTHER} is cancelled, and nothing has cancelled it" in each for each in problems(answers, set()))
    by_another = {**ASKS, LATE: OTHER}
    assert problems(answers | {LATE: CANCELLED | {"id": OTHER}}, set(), CONDITIONS, by_another) == []
    chain, conditions = {**ASKS, LATE: NEW}, {**CONDITIONS, LATE: "waiting"}
    last = CANCELLED | {"id": NEW, "replacement": LATE, "accepted": True}
    assert problems(answers | {LATE: last}, {LATE}, conditions, chain) == []


def test_two_answers_to_one_ask_are_a_problem() -> None:
    records = [received(ASK, GOOD[ASK])] * 2
    assert Answers.of(records).problems({ASK: OLD}, set(), True, RUN) == [f"{ASK} has 2 answers"]


@pytest.mark.parametrize(
    ("asked", "reason", "received_ms", "run"),
    [
        ("elsewhere/0/0", NO_INPUT, 0, RUN),
        ("in/1/0", UNREAD, 0, RUN),
        ("in/0/1000", UNREAD, 0, RUN),
        (OLD, DELETED, 0, replace(RUN, keeps_records=False)),
        (OLD, LOST, 0, replace(RUN, is_rebuilt=True)),
        (OLD, UNSURE, 400, RUN),
        # The clock of the job's host is ahead.
        (OLD, UNSURE, 300, replace(RUN, shown_ms=lambda now_ms: now_ms + 100)),
        # A dead letter is staged at once, and nothing is known about a message that nobody has published.
        (ASK, UNSURE, 0, RUN),
        ("in/0/2000", UNSURE, 0, RUN),
    ],
)  # fmt: skip
def test_an_unknown_that_something_explains_is_no_problem(
    asked: str, reason: str, received_ms: int, run: Circumstances
) -> None:
    assert unknown(asked, reason, received_ms, run) == []


@pytest.mark.parametrize(
    ("asked", "reason", "received_ms"),
    [
        ("in/0/0", NO_INPUT, 1_000),
        # Published before, in the partition of the request.
        (OLD, UNREAD, 1_000),
        ("elsewhere/0/0", UNREAD, 1_000),
        ("elsewhere/0/0", UNSURE, 1_000),
        # The topic has all records.
        (OLD, DELETED, 1_000),
        (OLD, LOST, 1_000),
        # That is the answer to a replacement alone.
        (OLD, NOT_REPLACED, 1_000),
        # It was due so late that it waited.
        (OLD, UNSURE, 399),
        (OLD, "because", 1_000),
        # An answer of another result.
        (OLD, "withdrawn", 1_000),
        (OLD, "the job has not read it yet", 1_000),
        (OLD, None, 1_000),
    ],
)
def test_an_unknown_that_cannot_be_true_or_has_no_reason_is_a_problem(
    asked: str, reason: str | None, received_ms: int
) -> None:
    assert len(unknown(asked, reason, received_ms)) == 1


def unknown(asked: str, reason: str | None, received_ms: int, run: Circumstances = RUN) -> list[str]:
    record = received("in/0/10", {"id": asked, "result": "unknown", "reason": reason, "received_ms": received_ms})
    return Answers.of([record]).problems({"in/0/10": asked}, {OLD, ASK}, True, run)


def test_a_message_that_waited_and_was_not_replaced_is_a_problem() -> None:
    assert problems(GOOD | {NEW: REFUSED | {"received_ms": 400}}, {OTHER}) == []
    (problem,) = problems(GOOD | {NEW: REFUSED | {"received_ms": 399}}, {OTHER})
    assert "cannot be true" in problem


def test_too_late_for_a_message_that_was_not_written_to_its_topic_is_a_problem() -> None:
    late = {"id": OLD, "result": "too-late", "reason": "released"}
    assert problems(GOOD | {ASK: late | {"received_ms": 900}}, {NEW, OLD}) == []
    (problem,) = problems(GOOD | {ASK: late | {"received_ms": 899}}, {NEW, OLD})
    assert "was due long after" in problem
    (problem,) = problems(GOOD | {ASK: {"id": OLD, "result": "too-late"}}, {NEW, OLD})
    assert "does not explain" in problem


def test_a_message_that_waited_and_was_recalled_from_a_release_process_is_a_problem() -> None:
    recalled = GOOD[ASK] | {"reason": "recalled"}
    assert problems(GOOD | {ASK: recalled | {"received_ms": 400}}, {NEW}) == []
    (problem,) = problems(GOOD | {ASK: recalled | {"received_ms": 399}}, {NEW})
    assert "cannot be true: recalled" in problem


DUE_NOW = {"id": OLD, "result": "due-now", "reason": "made-due"}
TOO_LATE = {"id": OLD, "result": "too-late", "reason": "released"}
DELIVERY, CANCEL = "in/0/10", "in/0/11"


@pytest.mark.parametrize(
    ("delivery", "cancel", "came_out", "problem"),
    [
        (DUE_NOW, None, {OLD}, None),
        # However long before it was due: it came out when somebody asked for it.
        (DUE_NOW | {"received_ms": 1}, TOO_LATE | {"received_ms": 1}, {OLD}, None),
        (GOOD[ASK] | {"reason": "already-cancelled"}, GOOD[ASK], set(), None),
        (DUE_NOW, None, set(), "did not come out, and was answered to be due-now"),
        (DUE_NOW, GOOD[ASK], {OLD}, "cancelled by one answer, and due-now by another"),
        (DUE_NOW | {"reason": "released"}, None, {OLD}, "does not explain"),
        (GOOD[ASK], GOOD[ASK], set(), "cannot be true: withdrawn"),
        (GOOD[ASK] | {"reason": "recalled"}, GOOD[ASK], set(), "cannot be true: recalled"),
        # Nobody has cancelled it.
        (GOOD[ASK] | {"reason": "already-cancelled"}, None, set(), "nothing has cancelled it"),
        # It waited, and nobody has made it due.
        (TOO_LATE | {"received_ms": 899}, None, {OLD}, "was due long after"),
        (TOO_LATE | {"received_ms": 900}, None, {OLD}, None),
        (TOO_LATE | {"result": "unknown", "reason": UNSURE, "received_ms": 399}, None, {OLD}, "cannot be true"),
    ],
)
def test_answers_to_what_shall_be_due_at_once_agree_with_what_came_out(
    delivery: dict[str, Any], cancel: dict[str, Any] | None, came_out: set[str], problem: str | None
) -> None:
    answers = {DELIVERY: delivery} | ({} if cancel is None else {CANCEL: cancel})
    records = [received(request, content) for request, content in answers.items()]
    found = Answers.of(records).problems(dict.fromkeys(answers, OLD), came_out, True, RUN, delivering={DELIVERY})
    assert any(problem in each for each in found) if problem else found == []


def test_what_an_answer_to_come_may_have_made_due_is_no_problem() -> None:
    late = received(CANCEL, TOO_LATE | {"received_ms": 1})
    assert Answers.of([late]).problems({CANCEL: OLD, DELIVERY: OLD}, {OLD}, False, RUN, delivering={DELIVERY}) == []
    answers = Answers.of([late, received(DELIVERY, DUE_NOW | {"received_ms": 5}), received(ASK, DUE_NOW)])
    assert answers.made_due_ms() == {OLD: 5}


def test_a_cancel_is_not_answered_as_what_shall_be_due_at_once() -> None:
    (problem,) = problems(GOOD | {ASK: DUE_NOW}, {NEW, OLD})
    assert "cannot be true: made-due" in problem
    (problem,) = problems(GOOD | {ASK: GOOD[ASK] | {"reason": "already-cancelled"}}, {NEW})
    assert "cannot be true: already-cancelled" in problem


@pytest.mark.parametrize(("unsure", "is_problem"), [(6, True), (5, False)])
def test_most_requests_about_staged_messages_are_answered_while_no_process_restarts(
    unsure: int, is_problem: bool
) -> None:
    requests = {f"in/0/{number}": OLD for number in range(10, 20)}
    answers = [
        received(request, {"id": OLD, "result": result, "reason": reason})
        for at, request in enumerate(requests)
        for result, reason in [("unknown", UNSURE) if at < unsure else ("too-late", "released")]
    ]

    def found(steady: Collection[str]) -> list[str]:
        return Answers.of(answers).problems(requests, {OLD}, True, replace(RUN, steady=steady))

    assert [f"{unsure} of 10 requests" in each for each in found(requests)] == [True] * is_problem
    assert found(list(requests)[1:]) == [], "of so few requests nothing follows"
    assert found(()) == []


@pytest.mark.parametrize(
    ("output", "is_right"),
    [
        ({"topic": "out", "partition": 3, "offsets": [10, 12]}, True),
        ({"topic": "out", "partition": 3}, True),
        ({"topic": "out"}, True),
        ({"topic": "other", "partition": 3, "offsets": [10, 12]}, False),
        ({"topic": "out", "partition": 2, "offsets": [10, 12]}, False),
        ({"topic": "out", "partition": 3, "offsets": [10, 11]}, False),
        ({"topic": "out", "partition": 3, "offsets": [13, 14]}, False),
        ("out", False),
    ],
)
def test_where_a_late_message_went_is_where_it_came_out(output: Any, is_right: bool) -> None:
    answers = Answers.of([received(ASK, {"id": OLD, "result": "too-late", "reason": "released", "output": output})])
    headers = (("delayline-id", OLD.encode()),)
    delivered = [Received("out", 3, 12, 0, None, b"", headers, 0), Received("out", 0, 1, 0, None, b"", (), 0)]
    assert bool(answers.misplaced(delivered)) == (not is_right)


@pytest.mark.parametrize(("late", "told", "is_right"), [(1_000, 0, False), (1_000, 1, True), (999, 0, True)])
def test_answers_to_many_late_requests_must_say_where_some_messages_went(late: int, told: int, is_right: bool) -> None:
    content = {"id": OLD, "result": "too-late", "reason": "released"}
    records = [
        received(f"in/0/{number}", content | ({"output": {"topic": "out"}} if number < told else {}))
        for number in range(late)
    ]
    answers = Answers.of(records)
    assert bool(answers.misplaced([])) == (not is_right)
    assert answers.places() == ({OLD: {"topic": "out"}} if told else {})
