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

_DOWN = Outage(killed_ms=50_000, back_ms=60_000)


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
    return result_of(verdict, published, records, _DOWN)


def test_delayed_and_plain_messages_and_those_of_the_outage_are_counted_separately() -> None:
    result = _result(
        {
            _message(0, None): 700,
            _message(1, 40_000): 100,
            # Received before the kill, and due while the job was down.
            _message(2, 49_000): 300,
            _message(3, 52_000): 9_000,
            _message(4, 60_000): 5_000,
            _message(5, 60_001): 200,
        }
    )
    assert result.holds
    assert (result.plain.count, result.plain.p50) == (1, 700)
    assert (result.overall.count, result.overall.p50) == (5, 300)
    assert (result.without_outage.count, result.without_outage.p50) == (3, 200)


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
