"""The checks of names: right runs pass, and each fault is found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from streaming.judge.names import KEEP, KEEP_TIME, Named, name_problems
from streaming.judge.record import ID_HEADER, Header, Received

SECOND = 1_000


def out(offset: int, received_ms: int, due: int | None = None) -> Received:
    """Return a delivery. It says when the message was due, in seconds, if that is given."""
    headers: tuple[Header, ...] = ((ID_HEADER, f"in/0/{offset}".encode()),)
    if due is not None:
        headers = (*headers, ("delayline-deliver-at", b"%d" % (due * SECOND)))
    return Received("out", 0, offset, 0, None, b"", headers, received_ms)


def answer(request: int, asked: int | None, result: str) -> Received:
    value = {"id": None if asked is None else f"in/0/{asked}", "result": result}
    header = ((ID_HEADER, f"in/0/{request}".encode()),)
    return Received("results", 0, request, 0, None, json.dumps(value).encode(), header, 0)


def records(*given: tuple[int, int | None]) -> list[Named]:
    """Return records of one name with the offsets 0, 1, ..., given as (published, due), in seconds."""
    return [
        Named(f"in/0/{at}", "a", published * SECOND, None if due is None else due * SECOND)
        for at, (published, due) in enumerate(given)
    ]


# Two messages and a cancel, which is too late for the first alone.
GIVEN = records((0, 60), (10, 70), (20, None), (30, 90))
ANSWERS = [answer(2, 1, "cancelled")]


def test_a_right_run_has_no_problem() -> None:
    assert name_problems(GIVEN, [out(3, 90 * SECOND)], ANSWERS, 5 * SECOND) == []
    # A message that was about to be delivered may come out, and then the answer says so.
    close = records((0, 12), (10, 70))
    late = [answer(1, 0, "too-late")]
    assert name_problems(close, [out(0, 12 * SECOND), out(1, 70 * SECOND)], late, 5 * SECOND) == []
    delivered = records((0, 5), (10, None))
    assert name_problems(delivered, [out(0, 5 * SECOND)], [answer(1, None, "unknown")], 5 * SECOND) == []


def test_what_waited_does_not_come_out_however_long_it_was_due_when_the_next_of_its_name_was_read() -> None:
    # The job was down from second 10 on. It read the second record at 5,000, when messages due from 70 on waited.
    before, after = records((0, 100), (50, 9_000))
    late = replace(after, known_ms=5_000 * SECOND, waited_from_ms=70 * SECOND)
    outs = [out(0, 5_001 * SECOND), out(1, 9_000 * SECOND)]
    (problem,) = name_problems([before, late], outs, [], 5 * SECOND)
    assert "in/0/0 came out, although it waited when the job read in/0/1" in problem
    assert name_problems([before, late], outs[1:], [], 5 * SECOND) == []
    staged = replace(late, waited_from_ms=101 * SECOND)
    assert name_problems([before, staged], outs, [], 5 * SECOND) == []
    cancel = replace(late, due_ms=None)
    (problem,) = name_problems([before, cancel], outs[:1], [answer(1, None, "unknown")], 5 * SECOND)
    assert "it waited" in problem


def test_message_that_was_replaced_long_after_it_had_to_come_out_must_have_come_out() -> None:
    before, after = records((0, 5), (60, 90))
    before = replace(before, out_by_ms=30 * SECOND)
    newest = out(1, 90 * SECOND)
    (problem,) = name_problems([before, after], [newest], [], 5 * SECOND)
    assert problem == "in/0/0 did not come out, and in/0/1 took over a long after it was due"
    assert name_problems([before, after], [out(0, 5 * SECOND), newest], [], 5 * SECOND) == []
    assert name_problems([replace(before, out_by_ms=60 * SECOND), after], [newest], [], 5 * SECOND) == []


@pytest.mark.parametrize(
    ("outs", "answers", "problem"),
    [
        ([], ANSWERS, "in/0/3, the newest message under a, did not come out"),
        ([out(3, 89 * SECOND)], ANSWERS, "in/0/3 is due at 90000, and came out at 89000"),
        ([out(3, 90 * SECOND)] * 2, ANSWERS, "in/0/3 came out 2 times"),
        (
            [out(0, 60 * SECOND), out(3, 90 * SECOND)],
            ANSWERS,
            "in/0/0 came out, although in/0/1 took over a long before",
        ),
        ([out(3, 90 * SECOND)], [], "in/0/2 has the answers None"),
        ([out(3, 90 * SECOND)], [answer(2, None, "unknown")], "in/0/1 did not come out, and in/0/2, which asks for a"),
        ([out(3, 90 * SECOND)], [answer(2, 3, "cancelled")], "in/0/2 asks for a, and was answered for in/0/3"),
        (
            [out(3, 90 * SECOND)],
            [*ANSWERS, answer(3, 1, "too-late")],
            "in/0/1 did not come out, and was answered to be",
        ),
        ([out(3, 90 * SECOND), out(9, 90 * SECOND)], ANSWERS, "in/0/9 came out, and was never published"),
        ([out(3, 90 * SECOND)], [*ANSWERS, answer(9, 1, "cancelled")], "in/0/9 has an answer, and asked for nothing"),
    ],
)
def test_each_fault_is_found(outs: list[Received], answers: list[Received], problem: str) -> None:
    problems = name_problems(GIVEN, outs, answers, 5 * SECOND)
    assert any(problem in each for each in problems), problems


# The first waits and keeps the name; the third follows a cancel of it, and the fourth is dropped for that.
KEPT = records((0, 60), (10, 70), (20, None), (30, 90), (40, 50))
KEPT_ANSWERS = [answer(2, 0, "cancelled"), answer(4, 3, "kept")]


def test_a_right_run_where_messages_keep_their_names_has_no_problem() -> None:
    assert name_problems(KEPT, [out(3, 90 * SECOND)], KEPT_ANSWERS, 5 * SECOND, KEEP) == []
    # The first came out before the second was published, or about then.
    both = [out(0, 12 * SECOND), out(1, 70 * SECOND)]
    for published in (10, 13):
        assert name_problems(records((0, 12), (published, 70)), both, [], 5 * SECOND, KEEP) == []
    assert name_problems(records((0, 12), (10, 70)), both[:1], [], 5 * SECOND, KEEP) == []


@pytest.mark.parametrize(
    ("given", "outs", "answers", "problem"),
    [
        (KEPT, [], KEPT_ANSWERS, "in/0/3 did not come out, and no message before it kept a"),
        (KEPT, [out(3, 90 * SECOND), out(4, 50 * SECOND)], KEPT_ANSWERS[:1], "in/0/4 came out, although in/0/3 kept a"),
        (KEPT, [out(3, 90 * SECOND), out(4, 50 * SECOND)], KEPT_ANSWERS, "in/0/4 came out, and was answered to be"),
        (records((0, 12), (13, 70)), [out(0, 12 * SECOND)], [], "in/0/1 did not come out, and no message before it"),
        (
            records((0, 60), (10, None), (30, 90)),
            [],
            [answer(1, 0, "cancelled")],
            "in/0/2 did not come out, and no message before it",
        ),
    ],
)
def test_each_fault_is_found_where_messages_keep_their_names(
    given: list[Named], outs: list[Received], answers: list[Received], problem: str
) -> None:
    problems = name_problems(given, outs, answers, 5 * SECOND, KEEP)
    assert any(problem in each for each in problems), problems


# The third is due when the first was. The fifth follows a cancel.
TIMED = records((0, 60), (10, 20), (15, 70), (20, None), (30, 90))


def test_a_right_run_where_messages_keep_their_due_times_has_no_problem() -> None:
    answers = [answer(3, 2, "cancelled")]
    assert name_problems(TIMED, [out(4, 90 * SECOND, 90)], answers, 5 * SECOND, KEEP_TIME) == []
    assert name_problems(TIMED[:3], [out(2, 60 * SECOND, 60)], [], 5 * SECOND, KEEP_TIME) == []
    # The first could not be recalled. The second is due then too, or was read after that.
    both = [out(0, 12 * SECOND, 12), out(1, 70 * SECOND, 70)]
    assert name_problems(records((0, 12), (11, 70)), both, [], 5 * SECOND, KEEP_TIME) == []
    both[1] = out(1, 13 * SECOND, 12)
    assert name_problems(records((0, 12), (11, 70)), both, [], 5 * SECOND, KEEP_TIME) == []
    # The job did not run when the first was due.
    assert name_problems(records((0, 12), (20, 70)), [out(1, 30 * SECOND, 12)], [], 5 * SECOND, KEEP_TIME) == []


@pytest.mark.parametrize(
    ("given", "outs", "problem"),
    [
        (
            TIMED[:3],
            [out(2, 70 * SECOND, 70)],
            "in/0/2 was due at 70000, and by the messages under a at one of [60000]",
        ),
        (
            TIMED[:3],
            [out(2, 20 * SECOND, 20)],
            "in/0/2 was due at 20000, and by the messages under a at one of [60000]",
        ),
        (TIMED[:3], [out(2, 59 * SECOND, 60)], "in/0/2 is due at 60000, and came out at 59000"),
        (TIMED[:3], [], "in/0/2, the newest message under a, did not come out"),
        (TIMED, [out(4, 90 * SECOND, 60)], "in/0/4 was due at 60000, and by the messages under a at one of [90000]"),
        (TIMED[:2], [out(at, 60 * SECOND, 60) for at in (0, 1)], "in/0/0 came out, although in/0/1 took over a long"),
    ],
)
def test_each_fault_is_found_where_messages_keep_their_due_times(
    given: list[Named], outs: list[Received], problem: str
) -> None:
    problems = name_problems(given, outs, [answer(3, 2, "cancelled")], 5 * SECOND, KEEP_TIME)
    assert any(problem in each for each in problems), problems
