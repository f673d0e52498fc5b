"""The checks of requests about messages that repeat: right runs pass, and each fault is found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from streaming.judge.endings import Request, ending_problems
from streaming.judge.record import ID_HEADER, Received
from streaming.judge.schedules import Repeated

SECOND = 1_000
# Two under one name, where the second takes over, one without an end, and one that comes three times.
FIRST = Repeated("in/0/0", 10 * SECOND, b"k", b"v", (), "out", every_ms=10 * SECOND, name="a")
SECOND_OF_NAME = replace(FIRST, id="in/0/1")
ENDLESS, THREE = replace(FIRST, id="in/1/0", name=""), replace(FIRST, id="in/1/1", name="", most=3)
REPEATED = {each.id: each for each in (FIRST, SECOND_OF_NAME, ENDLESS, THREE)}
REQUESTS = [
    Request("in/0/1", name="a", waited_from_ms=25 * SECOND),
    Request("in/0/2", name="a", waited_from_ms=45 * SECOND),
    Request("in/1/2", asked="in/1/0", delivers=True),
    Request("in/1/3", asked="in/1/0", waited_from_ms=35 * SECOND),
    Request("in/1/4", asked="in/1/1"),
    Request("in/1/5", asked="in/1/0", delivers=True),
]
CAME = {"in/0/0": 2, "in/0/1": 4, "in/1/0": 3, "in/1/1": 3}
Answer = tuple[str, str | None, str, str, int | None]
ANSWERS: dict[str, Answer] = {
    "in/0/1": ("in/0/1", "in/0/0", "cancelled", "withdrawn", 2),
    "in/0/2": ("in/0/2", "in/0/1", "cancelled", "withdrawn", 4),
    "in/1/2": ("in/1/2", "in/1/0", "kept", "repeats", None),
    "in/1/3": ("in/1/3", "in/1/0", "cancelled", "withdrawn", 3),
    "in/1/4": ("in/1/4", "in/1/1", "too-late", "released", None),
    "in/1/5": ("in/1/5", "in/1/0", "cancelled", "already-cancelled", None),
}


def problems(
    came: dict[str, int], answers: Sequence[Answer], repeated: dict[str, Repeated] = REPEATED, down: bool = False
) -> list[str]:
    records = []
    for identity, count in came.items():
        for number in range(1, count + 1):
            headers = ((ID_HEADER, identity.encode()), ("delayline-deliver-at", b"%d" % (10 * SECOND * number)))
            records.append(Received("out", 0, 0, 0, b"k", b"v", headers, 0))
    told = []
    for request, asked, result, reason, occurrence in answers:
        content = {"id": asked, "result": result, "reason": reason}
        value = json.dumps(content if occurrence is None else content | {"occurrence": occurrence})
        told.append(Received("results", 0, 0, 0, None, value.encode(), ((ID_HEADER, request.encode()),), 0))
    return list(ending_problems(repeated, REQUESTS, records, told, lambda *_: down))


def test_schedule_that_stops_long_before_its_cancel_is_found() -> None:
    message = replace(ENDLESS, staged_below_ms=5 * SECOND)
    cancel = Request("in/1/3", asked=ENDLESS.id, waited_from_ms=500 * SECOND, staged_below_ms=45 * SECOND)

    def judged(count: int, request: Request = cancel) -> list[str]:
        value = {"id": ENDLESS.id, "result": "cancelled", "reason": "withdrawn", "occurrence": count}
        answer = Received("results", 0, 0, 0, None, json.dumps(value).encode(), ((ID_HEADER, b"in/1/3"),), 0)
        records = [
            Received(
                "out", 0, 0, 0, b"k", b"v",
                ((ID_HEADER, ENDLESS.id.encode()), ("delayline-deliver-at", b"%d" % (10 * SECOND * number))), 0,
            )
            for number in range(1, count + 1)
        ]  # fmt: skip
        return list(ending_problems({message.id: message}, [request], records, [answer], lambda *_: False))

    assert judged(4) == []
    assert judged(2) == ["nothing came of in/1/0 at [30000, 40000], before in/1/3 ended it"]
    # It is not known what was staged by then, or both were read together.
    assert judged(2, replace(cancel, staged_below_ms=None)) == []
    assert judged(2, replace(cancel, staged_below_ms=5 * SECOND)) == []


def test_right_run_has_no_problem() -> None:
    assert problems(CAME, list(ANSWERS.values())) == []
    # The first of the name had ended by its rule.
    ended = REPEATED | {FIRST.id: replace(FIRST, most=2)}
    unnamed: Answer = ("in/0/1", None, "unknown", "no-such-name", None)
    assert problems(CAME, list((ANSWERS | {"in/0/1": unnamed}).values()), ended) == []
    unsure: Answer = ("in/1/4", "in/1/1", "unknown", "undecided", None)
    assert problems(CAME, list((ANSWERS | {"in/1/4": unsure}).values())) == []


@pytest.mark.parametrize(
    ("came", "answer", "words"),
    [
        ({"in/1/0": 2}, None, "in/1/0 came 2 times, and was answered to have come [3] times"),
        ({"in/1/0": 4}, None, "in/1/0 came at [40000], and in/1/3 had ended it before 35000"),
        ({"in/0/0": 3}, None, "in/0/0 came at [30000], and in/0/1 had ended it before 25000"),
        ({}, ("in/1/3", "in/1/0", "cancelled", "withdrawn", None), "was answered to have come [] times"),
        ({}, ("in/1/3", "in/1/0", "cancelled", "recalled", 3), "which cannot be"),
        ({}, ("in/1/3", "in/1/0", "cancelled", "already-cancelled", 3), "to a cancel"),
        ({}, ("in/1/3", "in/1/0", "kept", "repeats", None), "to a cancel"),
        ({}, ("in/1/5", "in/1/0", "cancelled", "withdrawn", None), "to a delivery now"),
        ({}, ("in/1/5", "in/1/0", "due-now", "made-due", None), "which cannot be"),
        ({}, ("in/1/3", "in/1/1", "cancelled", "withdrawn", 3), "and asks for in/1/0"),
        ({}, ("in/1/3", None, "unknown", "no-such-name", None), "and asks for in/1/0"),
        ({}, ("in/0/1", "in/0/1", "cancelled", "withdrawn", 4), "and asks for a"),
        ({}, ("in/1/3", "in/1/0", "unknown", "not-read", None), "which cannot be"),
        ({"in/1/1": 2}, None, "in/1/1 continues"),
        ({"in/1/1": 2}, None, "in/1/1 came 2 times, and neither has ended by its rule nor was cancelled"),
        ({}, ("in/0/1", None, "unknown", "no-such-name", None), "in/0/0 continues"),
    ],
)
def test_each_fault_is_found(came: dict[str, int], answer: Answer | None, words: str) -> None:
    answers = ANSWERS if answer is None else ANSWERS | {answer[0]: answer}
    found = problems(CAME | came, list(answers.values()))
    assert any(words in problem for problem in found), found


def test_answers_that_are_missing_or_too_many_are_found() -> None:
    every = list(ANSWERS.values())
    fewer = [answer for request, answer in ANSWERS.items() if request != "in/1/2"]
    assert any("in/1/2 has 0 answers" in each for each in problems(CAME, fewer))
    assert any("in/1/2 has 2 answers" in each for each in problems(CAME, [*every, ANSWERS["in/1/2"]]))
    foreign: Answer = ("in/1/9", "in/1/0", "cancelled", "withdrawn", 3)
    assert "in/1/9 was answered, and asked for nothing" in problems(CAME, [*every, foreign])


def test_schedule_whose_last_instants_may_count_as_missed_has_ended() -> None:
    until = REPEATED | {THREE.id: replace(THREE, most=None, until_ms=45 * SECOND)}
    assert any("in/1/1 continues" in each for each in problems(CAME, list(ANSWERS.values()), until))
    assert problems(CAME, list(ANSWERS.values()), until, down=True) == []
    each_comes = until | {THREE.id: replace(until[THREE.id], missed="all")}
    assert any("in/1/1 continues" in each for each in problems(CAME, list(ANSWERS.values()), each_comes, down=True))
