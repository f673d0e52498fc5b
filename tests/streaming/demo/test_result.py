"""The lateness of the demo's messages, and whether its result holds."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

from streaming.demo.result import Outage, Result, result_of
from streaming.judge.acceptance import Acceptance, CheckpointLog
from streaming.judge.contract import Environment
from streaming.judge.record import Published, Received
from streaming.judge.verdict import judge
from tests.streaming.judge.runs import numbered, record_of

_DONE = Outage(killed_ms=50_000, back_ms=60_000, covered_ms=55_000, release_killed_ms=70_000)


def _message(number: int, due_ms: int | None) -> Published:
    return Published(f"in/0/{number}", 1_000, None, b"v", (), "out", due_ms)


def _result(late_ms: dict[Published, int]) -> Result:
    """Return the result for messages that were received so many ms after their due times."""
    records = [replace(record_of(m, 0), received_ms=m.due_ms + late) for m, late in late_ms.items()]
    return _result_of([*late_ms], numbered(records))


def _result_of(messages: list[Published], records: list[Received]) -> Result:
    published = {message.id: message for message in messages}
    acceptance = Acceptance([CheckpointLog(offsets={("in", 0): 100})])
    verdict = judge(published, records, acceptance, Environment({"out": {1}}))
    return result_of(verdict, published, records, acceptance, _DONE)


def test_messages_are_counted_by_what_happened_when_they_were_due() -> None:
    late = replace(_message(7, 51_000), id="in/0/100")
    result = _result(
        {
            _message(0, None): 700,
            _message(1, 40_000): 100,
            # Due while the job was down: handed over before; and not, since it was due too late for that.
            _message(2, 52_000): 9,
            _message(3, 56_000): 5_000,
            _message(4, 60_000): 300,
            # Due just after the release process was killed.
            _message(5, 70_001): 800,
            _message(6, 75_000): 200,
            # Not accepted in time.
            late: 9_000,
        }
    )
    assert (result.plain.count, result.plain.p50) == (1, 700)
    assert (result.in_time.count, result.in_time.p50) == (3, 200)
    assert (result.job_down.count, result.job_down.p50) == (1, 9)
    assert (result.release_down.count, result.release_down.p50) == (1, 800)
    assert (result.overall.count, result.overall.p50) == (7, 300)


def test_without_messages_there_is_no_lateness() -> None:
    result = _result({})
    assert result.overall.count == 0
    assert isnan(result.overall.p99)


def test_a_result_with_a_fault_or_too_few_ordered_messages_does_not_hold() -> None:
    message = _message(0, 2_000)
    assert not _result_of([message], []).holds
    unknown = replace(message, id="in/0/100")
    assert not _result({unknown: 0}).holds
    assert _result({message: 0}).holds
