"""The lateness of the demo's messages, and whether its result holds."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

from streaming.demo.result import Result, result_of
from streaming.judge.acceptance import Acceptance, CheckpointLog
from streaming.judge.contract import Environment
from streaming.judge.record import Published, Received
from streaming.judge.verdict import judge
from tests.streaming.judge.runs import numbered, record_of

_RELEASE_KILLED_MS = 70_000


def _message(number: int, due_ms: int | None) -> Published:
    return Published(f"in/0/{number}", 1_000, None, b"v", (), "out", due_ms)


def _result(late_ms: dict[Published, int]) -> Result:
    """Return the result for messages that were received so many ms after their due times."""
    records = [replace(record_of(m, 0), received_ms=m.due_ms + late) for m, late in late_ms.items()]
    return _result_of([*late_ms], numbered(records))


def _result_of(messages: list[Published], records: list[Received]) -> Result:
    published = {message.id: message for message in messages}
    acceptance = Acceptance([CheckpointLog(offsets={("in", 0): 100})])
    verdict = judge(published, records, acceptance, Environment({"out": {1}, "dead": {1}}))
    return result_of(verdict, published, records, _RELEASE_KILLED_MS)


def test_messages_are_counted_by_what_they_are_and_when_they_were_due() -> None:
    result = _result(
        {
            _message(0, None): 700,
            _message(1, None): 1_700,
            _message(2, 69_999): 100,
            # Due just after the release process was killed.
            _message(3, 70_001): 800,
            _message(4, 75_000): 200,
            # It cannot be scheduled.
            replace(_message(5, None), output="dead", error="two-delays"): 9_000,
        }
    )
    assert (result.plain.count, result.plain.p50, result.plain.max) == (2, 1_200, 1_700)
    assert (result.release_down.count, result.release_down.p50) == (1, 800)
    assert (result.delayed.count, result.delayed.p50, result.delayed.max) == (3, 200, 800)


def test_without_messages_there_is_no_lateness() -> None:
    result = _result({})
    assert result.delayed.count == 0
    assert isnan(result.delayed.p99)


def test_a_result_with_a_fault_or_too_few_ordered_messages_does_not_hold() -> None:
    message = _message(0, 2_000)
    assert not _result_of([message], []).holds
    unknown = replace(message, id="in/0/100")
    assert not _result({unknown: 0}).holds
    assert _result({message: 0}).holds
