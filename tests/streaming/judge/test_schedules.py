"""The checks of messages that repeat: right runs pass, and each fault is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streaming.judge.record import ID_HEADER, Received
from streaming.judge.schedules import Repeated, last_numbers, schedule_problems

ID = "in/0/0"
SECOND = 1_000
EVERY = Repeated(ID, 10 * SECOND, b"k", b"v", (("x", b"1"),), "out", every_ms=10 * SECOND)
RIGHT = [(1, 10), (2, 20), (3, 30)]


def came(*given: tuple[int, int], late_s: int = 0, **changes: Any) -> list[Received]:
    """Return occurrences, given as number and due time in seconds, that came so late."""
    found = []
    for number, due_s in given:
        own = {"delayline-occurrence": number, "delayline-deliver-at": due_s * SECOND}
        headers = (("x", b"1"), (ID_HEADER, ID.encode()), *((name, b"%d" % each) for name, each in own.items()))
        record = Received("out", 0, number, 0, b"k", b"v", headers, (due_s + late_s) * SECOND)
        found.append(replace(record, **changes))
    return found


def problems(
    message: Repeated,
    records: list[Received],
    until_s: int = 35,
    last: int | None = -1,
    down: bool = False,
    horizon_s: int = 20,
) -> list[str]:
    ended = {} if last == -1 else {ID: last}
    until_ms, horizon_ms = until_s * SECOND, horizon_s * SECOND
    return list(schedule_problems({ID: message}, records, ended, until_ms, lambda *_: down, horizon_ms))


def test_right_run_has_no_problem() -> None:
    assert problems(EVERY, came(*RIGHT)) == []
    assert problems(replace(EVERY, most=3), came(*RIGHT), until_s=99) == []
    assert problems(replace(EVERY, until_ms=30 * SECOND), came(*RIGHT), until_s=99) == []
    assert problems(EVERY, came(*RIGHT), until_s=99, last=3) == []
    assert problems(replace(EVERY, superseded=True), came(*RIGHT), until_s=99) == []
    # The job was down from 15 to 45: the second one came late, and once.
    assert problems(EVERY, [*came((1, 10)), *came((2, 20), late_s=26), *came((3, 50))], until_s=55, down=True) == []
    none = replace(EVERY, missed="none")
    assert problems(none, came((1, 10), (2, 50)), until_s=55, down=True) == []
    # It was read late: the very first one comes in any case.
    late = [*came((1, 10), late_s=35), *came((2, 50))]
    assert problems(none, late, until_s=55, down=True, horizon_s=34) == []


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (came((1, 10), (1, 10)), "its occurrences came as 1, 1"),
        (came((1, 10), (3, 30)), "its occurrences came as 1, 3"),
        (came((2, 20), (1, 10)), "its occurrences came as 2, 1"),
        (came((1, 10), (2, 21)), "which its rule does not have"),
        (came((1, 10), (2, 30)), "nothing came at 20000"),
        (came((1, 20), (2, 30)), "and not at 10000"),
        (came((1, 10), (2, 20)), "nothing came at [30000]"),
        (came(*RIGHT, late_s=-1), "before 10000"),
        (came(*RIGHT, value=b"w"), "an occurrence has"),
        (came(*RIGHT, topic="other"), "an occurrence has"),
    ],
)
def test_each_fault_is_found(records: list[Received], words: str) -> None:
    assert any(words in problem for problem in problems(EVERY, records)), problems(EVERY, records)


def test_new_schedule_begins_after_what_one_of_its_name_and_expression_had_staged() -> None:
    old = Repeated(
        "in/0/0", 60 * SECOND, b"k", b"v", (("x", b"1"),), "out", cron="* * * * *", name="n", superseded=True
    )
    new = replace(old, id="in/0/1", first_ms=120 * SECOND)
    headers = (("x", b"1"), (ID_HEADER, b"in/0/1"), ("delayline-occurrence", b"1"), ("delayline-deliver-at", b"180000"))
    records = [*came((1, 60), (2, 120)), replace(came((1, 180))[0], headers=headers)]

    def judged(**changes: Any) -> list[str]:
        both = {old.id: old, new.id: replace(new, **changes)}
        return list(schedule_problems(both, records, {}, 190 * SECOND, lambda *_: False))

    assert judged() == []
    for changes in ({"name": "m"}, {"zone": "Europe/Berlin"}):
        assert judged(**changes) == ["in/0/1: it came at 180000 at first, and not at 120000"]


def test_faults_of_schedules_that_end_or_miss_something_are_found() -> None:
    (problem,) = problems(EVERY, came(*RIGHT), last=2)
    assert "was answered to have come 2 times" in problem
    assert any("may come 2 times" in each for each in problems(replace(EVERY, most=2), came(*RIGHT)))
    assert problems(replace(EVERY, until_ms=29 * SECOND), came(*RIGHT))
    gap = [*came((1, 10)), *came((2, 20), late_s=26), *came((3, 50))]
    assert any("nothing came at 30000" in each for each in problems(EVERY, gap, until_s=55))
    # Nothing is missed that is late by less.
    for missed in ("one", "none"):
        own = replace(EVERY, missed=missed)
        assert any("nothing came at 30000" in each for each in problems(own, gap, 55, down=True, horizon_s=26))
    assert any("nothing came at 30000" in each for each in problems(replace(EVERY, missed="all"), gap, 55, down=True))


def test_fewer_occurrences_than_answered_are_found() -> None:
    assert problems(EVERY, came(*RIGHT), until_s=55, last=3) == []
    (problem,) = problems(EVERY, came(*RIGHT), until_s=55, last=4)
    assert "nothing came at [40000" in problem


def test_what_was_due_before_its_record_was_read_may_count_as_missed() -> None:
    late = [*came((1, 10), late_s=26), *came((2, 40))]
    read_late = replace(EVERY, known_ms=35 * SECOND)
    assert problems(read_late, late, until_s=45) == []
    assert any("nothing came at 30000" in each for each in problems(replace(EVERY, known_ms=25 * SECOND), late, 45))
    assert any("nothing came at 20000" in each for each in problems(replace(read_late, missed="all"), late, 45))


def test_an_hour_of_a_cron_expression_is_worked_out_once_for_all_messages() -> None:
    message = replace(EVERY, every_ms=None, cron="*/20 * * * * *", first_ms=3_590 * SECOND)
    assert list(message.instants(3_661 * SECOND)) == [at_s * SECOND for at_s in (3_600, 3_620, 3_640, 3_660)]
    ended = replace(message, until_ms=3_640 * SECOND)
    assert list(ended.instants(9_999 * SECOND)) == [at_s * SECOND for at_s in (3_600, 3_620, 3_640)]


def test_number_of_the_last_occurrence_is_in_the_first_answer_alone() -> None:
    def answer(request: str, content: bytes) -> Received:
        return Received("results", 0, 0, 0, None, content, ((ID_HEADER, request.encode()),), 0)

    contents = [b'{"result": "cancelled", "occurrence": 3}', b'{"result": "cancelled"}']
    answers = [answer(f"in/0/{number}", content) for number, content in enumerate(contents, 1)]
    requests = {"in/0/1": ID, "in/0/2": ID}
    assert last_numbers(requests, answers) == last_numbers(requests, answers[::-1]) == {ID: 3}
