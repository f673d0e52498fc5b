"""The judge of messages that were asked for to be due at once."""

from __future__ import annotations

from streaming.judge.acceptance import Acceptance
from streaming.judge.contract import Environment, Fault
from streaming.judge.deliveries import as_made_due, too_early, too_late
from streaming.judge.record import Published, Received
from streaming.judge.verdict import judge

DUE_MS, ASKED_MS = 90_000, 40_000
MESSAGE = Published("in/0/1", 1_000, b"k", b"v", (), "out", DUE_MS)
SENT = {MESSAGE.id: MESSAGE}


def came(due_ms: int, received_ms: int) -> Received:
    headers = (("delayline-id", MESSAGE.id.encode()), ("delayline-deliver-at", b"%d" % due_ms))
    return Received("out", 0, 0, due_ms, b"k", b"v", headers, received_ms)


def faults(due_ms: int, received_ms: int, asked_ms: dict[str, int]) -> set[Fault]:
    record = came(due_ms, received_ms)
    sent = as_made_due(SENT, asked_ms, [record])
    verdict = judge(sent, [record], Acceptance([]), Environment({"out": {1}}))
    return {fault for fault, count in verdict.faults.items() if count}


def test_a_message_that_was_asked_for_is_due_when_it_says() -> None:
    asked_ms = {MESSAGE.id: ASKED_MS}
    assert faults(41_000, 41_001, asked_ms) == set()
    # It was due before it could be made so.
    assert faults(DUE_MS, DUE_MS, asked_ms) == set()
    assert faults(41_000, 40_999, asked_ms) == {Fault.EARLY}
    assert faults(DUE_MS + 1, DUE_MS + 1, asked_ms) == {Fault.ALTERED}
    assert faults(41_000, 41_001, {}) == {Fault.ALTERED, Fault.EARLY}


def test_a_message_that_came_out_before_anybody_asked_for_it_is_a_problem() -> None:
    asked_ms = {MESSAGE.id: ASKED_MS}
    assert list(too_early(SENT, asked_ms, [came(39_000, ASKED_MS)])) == []
    (problem,) = too_early(SENT, asked_ms, [came(39_000, ASKED_MS - 1)])
    assert "was asked for" in problem
    assert list(too_early(SENT, {MESSAGE.id: 2 * DUE_MS}, [came(DUE_MS, DUE_MS)])) == []


def test_a_message_that_was_answered_to_be_due_and_came_out_at_its_own_time_is_a_problem() -> None:
    answered_ms = {MESSAGE.id: ASKED_MS + 100}
    assert list(too_late(answered_ms, [came(ASKED_MS + 100, ASKED_MS + 50)])) == []
    (problem,) = too_late(answered_ms, [came(ASKED_MS + 101, DUE_MS)])
    assert "was answered to be due" in problem
    # The clock of the job's host is ahead.
    assert list(too_late(answered_ms, [came(ASKED_MS + 101, DUE_MS)], lambda now_ms: now_ms + 1)) == []
    assert list(too_late({}, [came(DUE_MS, DUE_MS)])) == []
